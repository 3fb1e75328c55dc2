"""Files in the column layout of CoNLL-2012, with made documents."""

SENTENCES = (
    ("Ada", "(0)"), ("met", "-"), ("the", "(1"), ("son", "-"), ("of", "-"), ("her", "(0)"),
    ("teacher", "1)"), (".", "-"), None,
    ("He", "(1)"), ("thanked", "-"), ("her", "(0)"), (".", "-"), None,
)  # fmt: skip


def column_document(name="nw/made/00/made_0001", part=0, rows=SENTENCES, speakers=("-", "B")):
    """Return a document as text; the speaker changes with the sentence."""
    lines, place, sentence = [f"#begin document ({name}); part {part:03d}"], 0, 0
    for row in rows:
        if row is None:
            lines.append("")
            place, sentence = 0, sentence + 1
            continue
        word, coreference = row
        speaker = speakers[sentence % len(speakers)]
        columns = [name, part, place, word, "NN", "*", "-", "-", "-", speaker, "*", coreference]
        lines.append("   ".join(map(str, columns)))
        place += 1
    return "\n".join([*lines, "#end document", ""])


def write_conll(root, count=6):
    """Write one file for each part; return their folder."""
    for part, number in (("train", count), ("dev", 2), ("test", 2)):
        texts = [
            column_document(f"{('nw', 'bc')[n % 2]}/made/00/{part}_{n:04d}", n)
            for n in range(number)
        ]
        (root / f"{part}.english.v4_gold_conll").write_text("".join(texts))
    return root
