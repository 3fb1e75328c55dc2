"""Traits and sources of rows."""

import importlib.metadata

import pytest
from report_records import build_leaderboard, record

from longspan.report import mechanisms
from longspan.report.mechanisms import UNKNOWN, read_traits, row_links, row_traits

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def project_urls(monkeypatch):
    """Function that sets the addresses in the package's metadata."""

    class Metadata:
        def __init__(self, urls):
            self.urls = urls

        def get_all(self, name):
            return self.urls if name == "Project-URL" else None

    def set_urls(*urls):
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: Metadata(urls))
        mechanisms._project_url.cache_clear()

    yield set_urls
    mechanisms._project_url.cache_clear()


def row_of(*runs):
    (row,) = build_leaderboard(runs).rows
    return row


def test_every_family_and_cost_has_a_mechanism():
    traits = read_traits()
    assert traits["full"]["cost"] == "T^2"
    assert not traits["linformer"]["causal"]
    assert traits["linear"]["cross"]
    assert row_traits(row_of(record("linear", family="kernel"))) == {
        "family": "kernel",
        "cost": "T",
        "causal": "yes",
        "cross": "yes",
    }


def test_own_mechanism_has_its_recorded_family_and_no_other_trait():
    own = row_of(record("own", family="hybrid"))
    assert row_traits(own)["family"] == "hybrid"
    assert {row_traits(own)[name] for name in ("cost", "causal", "cross")} == {UNKNOWN}
    assert row_traits(row_of(record(overrides={"row": "words"}))) == {}


def test_paper_is_linked_and_commit_is_text_without_addresses(project_urls):
    project_urls()
    row = row_of(record("performer", git_commit=f"{COMMIT}-dirty"))
    assert row_links(row) == (
        ("paper", "https://arxiv.org/abs/2009.14794"),
        ("0123456 changed", None),
    )
    assert row_links(row_of(record("own", git_commit=None))) == ()


def test_page_and_commit_are_linked_where_the_project_has_addresses(project_urls):
    project_urls("Documentation, https://docs.test/", "Repository, https://code.test/x")
    found = dict(row_links(row_of(record("performer", git_commit=COMMIT))))
    assert found["page"] == "https://docs.test/mechanisms/performer/"
    assert found["0123456"] == f"https://code.test/x/commit/{COMMIT}"
    hostile = dict(row_links(row_of(record("own", git_commit="x?javascript:1"))))
    assert hostile == {"x?javas": None}
