"""Generator of Pathfinder: strokes equal Pillow's, contours match labels and the original."""

import dataclasses
import hashlib
import io
import random
import tarfile

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage

from longspan.errors import OptionError
from longspan.tasks.lra.generators import pathfinder
from longspan.tasks.lra.generators._pathfinder_tables import GROUND, OTHER, draw_line, ring, shrink
from longspan.tasks.lra.generators.pathfinder import RESOLUTIONS, generate, lra_settings, redraw
from real_data import real

FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
LIT = 60  # a pixel this bright is part of a stroke


@pytest.fixture(scope="module")
def published():
    """Return images and labels of the original generator, by difficulty."""
    with tarfile.open(real("pathfinder32_generated/pathfinder32.tar.gz")) as archive:
        content = {
            member.name: archive.extractfile(member).read()
            for member in archive.getmembers()
            if member.isfile()
        }
    return {name: read(content, f"pathfinder32/{part}/") for name, part in FOLDERS.items()}


def read(content, start):
    images, labels = [], []
    for name in sorted(name for name in content if name.startswith(f"{start}metadata")):
        for line in content[name].decode().splitlines():
            folder, file, _, label, *_ = line.split()
            images.append(np.array(Image.open(io.BytesIO(content[f"{start}{folder}/{file}"]))))
            labels.append(int(label))
    return np.stack(images), np.array(labels)


@pytest.fixture(scope="module")
def drawn():
    """Return images and labels with the gray levels of the files in the test data."""
    sizes = {"easy": 1_500, "intermediate": 1_500, "hard": 4_000}  # published: 400, 400, 3,000
    return {
        name: generate(lra_settings(32, name, "2026"), range(count), seed=3)
        for name, count in sizes.items()
    }


def deviations(first, second):
    """Return the differences of the means of two samples (n, ...), in standard errors."""
    variance = first.var(0) / len(first) + second.var(0) / len(second)
    # a pixel that is rarely lit has no variance in a small sample
    rare = (first.astype(bool).sum(0) < 40) | (variance == 0)
    gaps = (first.mean(0) - second.mean(0)) / np.sqrt(np.where(rare, 1, variance))
    return gaps[~rare]


def gap(first, second):
    """Return the Kolmogorov-Smirnov distance of two samples, scaled by their sizes."""
    first, second = np.sort(first), np.sort(second)
    places = np.concatenate([first, second])
    shares = [np.searchsorted(one, places, side="right") / len(one) for one in (first, second)]
    return np.abs(shares[0] - shares[1]).max() / np.sqrt(1 / len(first) + 1 / len(second))


def components(lit):
    """Number each connected region (n, R, R), diagonals included."""
    neighbors = np.zeros((3, 3, 3))
    neighbors[1] = 1
    return ndimage.label(lit, neighbors)[0]


def marker_places(image):
    """Return the two brightest blocks of 2 x 2 pixels that are not neighbors."""
    block = np.min([image[:-1, :-1], image[1:, :-1], image[:-1, 1:], image[1:, 1:]], axis=0)
    block = block.astype(int)
    first = np.unravel_index(block.argmax(), block.shape)
    block[max(first[0] - 2, 0) : first[0] + 3, max(first[1] - 2, 0) : first[1] + 3] = 0
    second = np.unravel_index(block.argmax(), block.shape)
    return np.array([first, second]), block[second]


def distances(images):
    """Return the distances of the two markers, for images that show both."""
    found = [marker_places(image) for image in images]
    return np.array([np.hypot(*(a - b)) for (a, b), level in found if level > 150])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 4, 10])
def test_strokes_equal_those_of_pillow(width, length):
    middle = length + 6
    directions = np.radians(np.arange(360))
    for angle in directions:
        step = length * np.array([np.sin(angle), np.cos(angle)])
        row, column = np.ceil(middle + step).astype(int).tolist()
        image = np.zeros((2 * middle + 1, 2 * middle + 1), np.uint8)
        draw_line(image, (middle, middle), np.array([row, column]), width)
        theirs = Image.new("L", image.shape, 0)
        line = ImageDraw.Draw(theirs)
        line.line([(middle, middle), (column, row)], fill=255, width=width)
        np.testing.assert_array_equal(image, theirs)


@pytest.mark.parametrize(("size", "target"), [(17, 9), (41, 21), (64, 32), (40, 20), (30, 30)])
def test_shrinking_equals_that_of_pillow(size, target):
    image = np.random.default_rng(0).integers(0, 256, (size, size)).astype(np.uint8)
    image[image < 128] = 0
    theirs = Image.fromarray(image).resize((target, target), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(shrink(image, target), theirs)


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_markers_are_disks_shrunk_by_pillow(resolution):
    settings = lra_settings(resolution)
    rows, columns = np.ogrid[: 2 * resolution, : 2 * resolution]
    for number in range(5):
        drawing = redraw(settings, number, seed=0)
        disks = np.zeros((resolution, resolution))
        for row, column in drawing.markers:
            inside = (rows - 2 * row) ** 2 + (columns - 2 * column) ** 2
            disk = Image.fromarray(
                (inside <= (2 * settings.marker_radius) ** 2).astype(np.uint8) * 255
            )
            disks = np.maximum(
                disks, disk.resize((resolution, resolution), Image.Resampling.LANCZOS)
            )
        alone = (drawing.owner < 0) & (disks > 32)
        brightest = max(255.0, *(255 * c for c in (settings.contrast, settings.contour_contrast)))
        scale = drawing.image[alone] / disks[alone]
        assert np.ptp(scale) < 0.02  # one scale for the whole image
        assert 255 / brightest - 0.01 <= scale.mean() <= 1.01


def angle_of(turn, tables):
    """Return the angle in which the original draws a paddle, from its start."""
    if turn < 360:
        return np.radians(turn - 180)
    row, column = tables.step[turn - 360]
    angle = np.arctan2(row, column)
    return angle + np.pi if angle < 0 else angle - np.pi


def draw_paddle(settings, margin, place, angle, contrast, dtype):
    """Return a paddle (R, R) as `draw_line_n_mask` of the original draws it, with Pillow."""
    fine, length = settings.antialias, settings.paddle_length
    reach = length + int(np.ceil(settings.thickness)) + margin
    middle, side = reach * fine, 2 * reach + 1
    row, column = (
        int(np.ceil(middle + length * fine * part)) for part in (np.sin(angle), np.cos(angle))
    )
    blown = Image.new("L", (2 * middle + 1, 2 * middle + 1), 0)
    ends = [(middle, middle), (column, row)]
    ImageDraw.Draw(blown).line(ends, fill=255, width=round(settings.thickness * fine))
    small = np.array(blown.resize((side, side), Image.Resampling.LANCZOS)).astype(dtype) / 255
    small *= contrast
    wide = np.zeros((settings.resolution + 2 * reach,) * 2, np.float32)
    wide[place[0] : place[0] + side, place[1] : place[1] + side] = small
    return wide[reach:-reach, reach:-reach]


def draw_disk(settings, marker):
    size, fine = settings.resolution, settings.antialias
    rows, columns = np.ogrid[: size * fine, : size * fine]
    away = (rows - marker[0] * fine) ** 2 + (columns - marker[1] * fine) ** 2
    disk = (away <= (settings.marker_radius * fine) ** 2).astype(np.uint8) * 255
    small = Image.fromarray(disk).resize((size, size), Image.Resampling.LANCZOS)
    return np.array(small).astype(np.float64) / 255


def bytescale(data):
    """Scale to 0..255 as `scipy.misc.imsave` of SciPy 1.2 does."""
    scale = 255.0 / (data.max() - data.min())
    return (((data - data.min()) * scale).clip(0, 255) + 0.5).astype(np.uint8)


def draw_like_the_original(settings, number, seed):
    """Draw an image by the formulas of the original: strokes are products, stored in 32 bits.

    https://github.com/drewlinsley/pathfinder, snakes.py and snakes2.py at ab9c130. The products
    have 64 bits there, and 32 bits in the repair of 2026.
    """
    drawn = pathfinder._draw(settings, seed, range(number, number + 1))
    which = pathfinder._margin(settings, pathfinder._digest(seed, number))
    tables, margin = pathfinder._tables(settings)[which], settings.margins[which]
    dtype = {"2019": np.float64, "2026": np.float32}[settings.gray_levels]
    image = np.zeros((settings.resolution,) * 2)
    for contour, turn, *place in drawn.strokes[0].tolist():
        if contour < 0:
            continue
        contrast = settings.contrast if contour == OTHER else settings.contour_contrast
        angle = angle_of(turn, tables)
        paddle = draw_paddle(settings, margin, place, angle, contrast, dtype)
        image = np.maximum(image, paddle)
    for marker in drawn.markers[0]:
        image = np.maximum(image, draw_disk(settings, marker))
    return bytescale(image)


@pytest.mark.parametrize(
    ("resolution", "gray_levels"),
    [(32, "2019"), (32, "2026"), (64, "2019"), (128, "2019"), (256, "2019")],
)
def test_pixels_are_those_of_the_original(resolution, gray_levels):
    settings = lra_settings(resolution, gray_levels=gray_levels)
    images, _ = generate(settings, range(8), seed=11)
    for number, image in enumerate(images):
        np.testing.assert_array_equal(image, draw_like_the_original(settings, number, 11))


def test_gray_levels_of_2026_differ_by_one_in_small_images():
    (older, labels), (newer, same_labels) = (
        generate(lra_settings(32, gray_levels=version), range(100), seed=11)
        for version in ("2019", "2026")
    )
    assert labels.tolist() == same_labels.tolist()
    assert set(np.unique(older.astype(int) - newer)) == {-1, 0}
    assert 0.4 < (older != newer).any((1, 2)).mean() < 0.8


@pytest.mark.parametrize("resolution", [64, 128, 256])
def test_gray_levels_of_2026_are_those_of_2019_in_larger_images(resolution):
    """A marker is brighter than every stroke there, so the scale of an image is 255."""
    settings = lra_settings(resolution)
    assert settings.contrast == settings.contour_contrast <= 1
    older, newer = (
        bytescale(np.append(pathfinder._brightness(settings.contrast, version), 1.0))
        for version in ("2019", "2026")
    )
    np.testing.assert_array_equal(older, newer)


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_annotated_images_equal_generated_ones(resolution):
    settings = lra_settings(resolution)
    images, labels = generate(settings, range(20), seed=1)
    assert images.shape == (20, resolution, resolution)
    assert images.dtype == labels.dtype == np.uint8
    assert (images.max((1, 2)) == 255).all()
    for number in range(20):
        drawing = redraw(settings, number, seed=1)
        np.testing.assert_array_equal(drawing.image, images[number])
        assert drawing.label == labels[number]
        counts = np.bincount(drawing.contours)
        assert (counts[:2] == settings.contour_length).all()
        assert (counts[2:] == settings.distractor_length).all()
        assert len(counts) <= 2 + settings.distractors
        assert drawing.image[drawing.owner >= 0].min() > 10
        for contour in range(2):
            assert (drawing.owner == contour).any()


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_label_is_one_if_the_markers_end_one_contour(resolution):
    for number in range(30):
        drawing = redraw(lra_settings(resolution), number, seed=2)
        first, second = drawing.marked_contours
        assert {first, second} <= {0, 1}
        assert drawing.label == (first == second)
        for contour, marker, end in zip((first, second), drawing.markers, (0, -1), strict=True):
            own = drawing.paddles[drawing.contours == contour]
            np.testing.assert_array_equal(own[end, 0], marker)


@pytest.mark.parametrize(("number", "label"), [(190, 0), (201, 1)])
def test_contours_that_end_at_one_place_are_told_apart(number, label):
    """Paddles of both contours lie at the second marker."""
    drawing = redraw(lra_settings(32), number, seed=3)
    at_marker = (drawing.paddles[:, 0] == drawing.markers[1]).all(1)
    assert set(drawing.contours[at_marker]) == {0, 1}
    assert drawing.marked_contours == ((1, 1) if label else (1, 0))
    assert drawing.label == label


def chains(drawing, settings):
    """Return the gaps and turns between neighbors of each contour, in pixels and radians."""
    gaps, turns = [], []
    for contour in np.unique(drawing.contours):
        own = drawing.paddles[drawing.contours == contour].astype(float)
        # the first paddle points ahead, the others point back
        near, far = own[:, 1].copy(), own[:, 0].copy()
        near[0], far[0] = own[0]
        gaps.append(np.hypot(*(near[1:] - far[:-1]).T))
        angle = np.arctan2(*(far - near).T)
        turns.append(np.abs((np.diff(angle) + np.pi) % (2 * np.pi) - np.pi))
    return np.concatenate(gaps), np.concatenate(turns)


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_contours_are_chains(resolution):
    settings = lra_settings(resolution)
    gaps, turns = zip(
        *(chains(redraw(settings, number, seed=5), settings) for number in range(20)), strict=True
    )
    # twice the margin, plus the rounding of four places
    assert np.concatenate(gaps).max() <= 2 * max(settings.margins) + 3
    assert abs(np.median(np.concatenate(gaps)) - 2 * np.mean(settings.margins)) <= 1
    # the steepest turn, plus the error of the grid: a paddle has few directions
    steepest = np.pi / 2 / settings.continuity + 2 / settings.paddle_length
    assert np.concatenate(turns).max() <= steepest


def joined(drawing, settings):
    """Return whether a walk over as many paddles as a contour has joins the markers.

    The walk uses only the paddles and the rule for the next one, not the contour of a paddle.
    """
    ends = drawing.paddles.astype(float)
    start, stop = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    direction = (stop - start) / np.linalg.norm(stop - start, axis=1, keepdims=True)
    step = start[None] - stop[:, None]
    turn = np.pi / 2 / settings.continuity + 0.35
    follows = np.hypot(*np.moveaxis(step, -1, 0)) <= 2 * max(settings.margins) + 2.7
    follows &= direction @ direction.T >= np.cos(turn)
    follows &= np.einsum("ijk,ik->ij", step, direction) > -1
    reached = (start == drawing.markers[0]).all(1)
    for _ in range(settings.contour_length - 1):
        reached = (reached[:, None] & follows).any(0)
    return bool((reached & (stop == drawing.markers[1]).all(1)).any())


def test_chain_of_paddles_joins_the_markers_if_and_only_if_the_label_is_one():
    settings = lra_settings(256)
    drawings = [redraw(settings, number, seed=1) for number in range(100)]
    found = np.array([joined(drawing, settings) for drawing in drawings])
    labels = np.array([drawing.label for drawing in drawings], bool)
    assert found[labels].all()
    # a walk may change contours at a crossing
    assert found[~labels].mean() < 0.1


def test_few_directions_start_a_contour_of_short_paddles():
    """The original gives up if its template leaves a corner of the image."""
    firsts = [redraw(lra_settings(32), number, seed=6).paddles[0] for number in range(60)]
    steps = np.array([head - tail for tail, head in firsts])
    assert (steps <= 0).all()  # up and left
    both = [redraw(lra_settings(256), number, seed=6).paddles[0] for number in range(60)]
    assert {tuple(np.sign(head - tail)) for tail, head in both} >= {(1, 1), (-1, -1), (1, -1)}


@pytest.mark.parametrize("resolution", [32, 256])
def test_distractors_start_on_free_ground(resolution):
    settings = lra_settings(resolution)
    (tables,) = pathfinder._tables(settings)
    both = 2 * settings.contour_length
    covered = []
    for strokes in pathfinder._draw(settings, 4, range(300)).strokes:
        contour, turn = strokes[both, :2]
        if contour < 0:
            continue
        # the end of the first contour is not an obstacle
        ground = np.zeros((resolution, resolution))
        for one in np.delete(strokes[:both], both - 2, axis=0):
            sprite = tables.sprite[GROUND, one[1]]
            ground = np.maximum(ground, pathfinder._paste(sprite, one[2:], resolution))
        places = strokes[both, 2:] + tables.probe[turn][: tables.probes[turn]]
        assert places.min() > 0
        assert places.max() < resolution - 1
        covered.append(ground[tuple(places.T)].max())
    assert len(covered) > 150
    assert 0 < max(covered) <= 0.3 * 255


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_contours_start_near_the_middle_at_the_seed_distance(resolution):
    settings = lra_settings(resolution)
    tails = np.array(
        [redraw(settings, number, seed=7).paddles[:2, 0] for number in range(20)], float
    )
    away = np.hypot(*(tails[:, 1] - tails[:, 0]).T)
    assert (abs(away - settings.seed_distance) <= 0.75).all()
    reach = settings.paddle_length + max(settings.margins)
    low = 2 * settings.seed_distance - reach
    assert ((tails[:, 0] >= low) & (tails[:, 0] < resolution - low)).all()
    np.testing.assert_allclose(np.hypot(*ring(50).T), 50, atol=0.75)


def test_half_of_the_labels_are_one_and_margins_are_drawn(drawn):
    labels = np.concatenate([labels for _, labels in drawn.values()])
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))
    settings = lra_settings(128)
    margins = [pathfinder._margin(settings, pathfinder._digest(0, n)) for n in range(2_000)]
    assert abs(np.mean(margins) - 0.5) < 4 * 0.5 / np.sqrt(len(margins))


@pytest.mark.parametrize("difficulty", FOLDERS)
def test_pixels_have_the_statistics_of_the_original(published, drawn, difficulty):
    theirs, ours = published[difficulty][0], drawn[difficulty][0]
    measures = {
        "mean": lambda images: images.mean((1, 2)),
        "ink": lambda images: (images > 0).sum((1, 2)),
        "strokes": lambda images: (images > LIT).sum((1, 2)),
        "brightest": lambda images: (images == 255).sum((1, 2)),
        "middle": lambda images: images[:, 8:24, 8:24].mean((1, 2)),
        "border": lambda images: images[:, :3].mean((1, 2)) + images[..., :3].mean((1, 2)),
        "height": lambda images: (images > LIT).any(2).sum(1),
        "width": lambda images: (images > LIT).any(1).sum(1),
    }
    for name, measure in measures.items():
        # significance level 1 in 10,000 for each
        assert gap(measure(theirs), measure(ours)) < 2.2, name
    # the root mean square is 1 if the distributions are equal
    levels = [
        np.stack([np.bincount(one.ravel(), minlength=256) for one in kind])
        for kind in (theirs, ours)
    ]
    for pair in (levels, (theirs, ours)):
        z = deviations(*pair)
        assert len(z) > 90
        assert np.sqrt((z**2).mean()) < 1.2
        assert np.abs(z).max() < 5.5


def test_files_of_2026_do_not_have_the_gray_levels_of_2019(published):
    images, _ = generate(lra_settings(32), range(1_000), seed=3)
    levels = [
        np.stack([np.bincount(one.ravel(), minlength=256) for one in kind])
        for kind in (published["hard"][0], images)
    ]
    assert np.abs(deviations(*levels)).max() > 20


@pytest.mark.parametrize("difficulty", FOLDERS)
def test_number_of_strokes_and_distance_of_markers_match_the_original(published, drawn, difficulty):
    theirs, ours = published[difficulty][0][:1_000], drawn[difficulty][0][:2_000]
    counts = [
        np.array([len(np.unique(one)) - 1 for one in components(images > LIT)])
        for images in (theirs, ours)
    ]
    assert counts[1].mean() > 5
    assert gap(*counts) < 2.2
    places = [distances(images) for images in (theirs, ours)]
    shares = [
        len(found) / len(images) for found, images in zip(places, (theirs, ours), strict=True)
    ]
    assert min(shares) > 0.9
    assert abs(shares[0] - shares[1]) < 4 * np.sqrt(0.1 / len(theirs))
    assert gap(*places) < 2.2


def test_markers_are_on_touching_strokes_as_often_as_in_the_original(published, drawn):
    """Compare after closing gaps of one pixel, for both labels, since contours cross."""

    def touching(images):
        lit = np.pad(images > LIT, ((0, 0), (1, 1), (1, 1)))
        regions = components(lit | np.roll(lit, 1, 1) | np.roll(lit, 1, 2))[:, 1:-1, 1:-1]
        places = [marker_places(image)[0] for image in images]
        ends = np.array([region[tuple(at.T)] for region, at in zip(regions, places, strict=True)])
        return ends[:, 0] == ends[:, 1]

    rates = []
    for images, labels in (published["hard"], drawn["hard"]):
        images, labels = images[:1_500], labels[:1_500]
        found = touching(images)
        rates.append([found[labels == label].mean() for label in (0, 1)])
    assert 0.2 < np.min(rates) < np.max(rates) < 0.8
    assert np.abs(np.subtract(*rates)).max() < 4 * np.sqrt(2 * 0.25 / 750)


def checksum(settings, numbers, seed, workers=None):
    images, labels = generate(settings, numbers, seed=seed, workers=workers)
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


@pytest.mark.parametrize("resolution", [32, 128])
def test_number_of_threads_makes_no_difference(resolution):
    one, many = (checksum(lra_settings(resolution), range(150), 5, workers) for workers in (1, 5))
    assert one == many


def test_image_does_not_depend_on_the_other_images():
    images, labels = generate(lra_settings(128), range(90), seed=5)
    part, part_labels = generate(lra_settings(128), range(17, 90, 3), seed=5)
    np.testing.assert_array_equal(part, images[17::3])
    np.testing.assert_array_equal(part_labels, labels[17::3])


def test_streams_depend_on_the_seed_but_not_on_the_global_seed():
    first = checksum(lra_settings(32), range(50), 5)
    random.seed(1)
    np.random.seed(1)
    assert checksum(lra_settings(32), range(50), 5) == first
    assert checksum(lra_settings(32), range(50), 6) != first
    images, _ = generate(lra_settings(32), range(2_000), seed=5)
    assert len({image.tobytes() for image in images}) == 2_000


@pytest.mark.parametrize(
    ("resolution", "gray_levels", "digest"),
    [
        (32, "2019", "d8f17c5c5f2408632b0fcbcb3117ad9a1cfa2d531407b66f3711aa95e89e4a6c"),
        (32, "2026", "1aca062d3d30d93ceb8f05a23e5c3c8bfce96f0f727b9a3ca023e05b6cc8a082"),
        (128, "2019", "9f655f3add46f7a18a5b39a93c8124df5ee520ff791417479480179140250d15"),
    ],
)
def test_stream_is_the_same_in_every_version(resolution, gray_levels, digest):
    """If this digest changes, the data has changed: raise the version of the task."""
    settings = lra_settings(resolution, gray_levels=gray_levels)
    assert checksum(settings, range(50), 5) == digest


def test_empty_range_gives_empty_arrays():
    images, labels = generate(lra_settings(32), range(0), seed=0)
    assert images.shape == (0, 32, 32)
    assert labels.shape == (0,)


def test_contours_without_room_are_rejected():
    settings = dataclasses.replace(lra_settings(32), contour_length=200)
    with pytest.raises(OptionError, match="do not fit into 32 x 32 pixels; use a smaller"):
        generate(settings, range(1), seed=0)


OTHER_SETTINGS = {
    "no distractors": dataclasses.replace(lra_settings(32), distractors=0),
    "all others": dataclasses.replace(
        lra_settings(32),
        resolution=48,
        contour_length=4,
        distractor_length=1,
        distractors=3,
        seed_distance=8,
        continuity=1.8,
        antialias=4,
        margins=(1, 2),
    ),
}


@pytest.mark.parametrize("case", OTHER_SETTINGS)
def test_other_settings_are_drawn(case):
    settings = OTHER_SETTINGS[case]
    drawing = redraw(settings, 0, seed=0)
    assert drawing.image.shape == (settings.resolution,) * 2
    counts = np.bincount(drawing.contours, minlength=2)
    assert counts[:2].tolist() == [settings.contour_length] * 2
    assert counts[2:].sum() <= settings.distractors * settings.distractor_length
