"""Colored MNIST and WaterBird: the shortcut is as strong as configured, and everything else stays the same."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedshift.clients.domains import DomainData
from fedshift.datasets.mnist import GREEN, WINDOWS, ColoredMNIST, averaged
from fedshift.datasets.waterbird import WaterBird, blend, is_waterbird
from fedshift.streams import Streams
from refusal import refuses
from test_data import write_idx


def test_an_image_is_made_smaller_by_means_that_are_rounded():
    """The means of its four squares are 0.75, 0.25, 254.75 and 1.5, which goes to the even 2."""
    image = [[1, 1, 0, 0], [1, 0, 1, 0], [255, 255, 1, 2], [255, 254, 1, 2]]
    made = averaged(torch.tensor([image], dtype=torch.uint8), 2)
    assert (made.dtype, made.tolist()) == (torch.uint8, [[[1, 0], [255, 2]]])


# Colored MNIST ------------------------------------------------------------------------------------


def numbered(root: Path, count: int = 800) -> str:
    """Images that carry their own number: pixel (0, 0) is 255, (0, 1) and (0, 2) the number's two bytes.

    Labels go round the ten digits, so the number's last decimal is the digit.
    """
    images, numbers = np.zeros((count, 28, 28), np.uint8), np.arange(count)
    images[:, 0, 0], images[:, 0, 1], images[:, 0, 2] = 255, numbers // 256, numbers % 256
    write_idx(root / "numbered", images, numbers % 10)
    return str(root / "numbered")


def load(path: str, seed: int = 0, **settings: object) -> DomainData:
    return ColoredMNIST(path=path, **settings).load(Streams(seed))


def number_of(data: DomainData) -> torch.Tensor:
    """The number of each sample's original, read off its pixels."""
    pixels = data.x.amax(dim=1).long()
    return pixels[:, 0, 1] * 256 + pixels[:, 0, 2]


def is_green(data: DomainData) -> torch.Tensor:
    """Whether each image lies in the green channel alone; it must lie in exactly one."""
    lit = data.x[:, :, 0, 0] == 255
    assert (lit.sum(dim=1) == 1).all()
    assert (data.x.flatten(2).amax(dim=2)[~lit] == 0).all()
    return lit[:, GREEN]


def test_each_client_holds_its_four_digits_and_shares_none_of_its_images(tmp_path: Path):
    """80 images a digit. Of eight clients two contain digit 0 (40 images each), four digit 1 (20 each).

    So clients 1, 4, 5, 8 contain 2 * 40 + 2 * 20 = 120 images, 96 to train on; the others 80, 64 to train on.
    """
    data = load(numbered(tmp_path), clients=8)
    number = number_of(data)
    assert torch.equal(data.group, number)
    assert data.domains == tuple(f"client {n}" for n in range(1, 9))
    owner: dict[int, int] = {}
    for client in range(8):
        inside = data.domain == client
        assert set((number[inside] % 10).tolist()) == set(WINDOWS[client % 4])
        train, test = (number[inside & (data.environment == e)].tolist() for e in (0, data.environments.index("p=0.3")))
        assert len(train) == (96 if client % 4 in (0, 3) else 64)
        assert len(test) == len(train) // 4
        for original in train + test:
            assert owner.setdefault(original, client) == client
        assert len(set(train + test)) == len(train) + len(test)
    assert len(owner) == 800


def test_every_test_environment_shows_the_same_originals_with_the_same_labels(tmp_path: Path):
    """Asked for alone, too; another seed draws others."""
    path = numbered(tmp_path)
    data, alone = load(path), load(path, test_p=(0.3,))
    assert data.environments == ("train", *(f"p={p / 10:g}" for p in range(11)))
    first = data.environment == 1
    for environment in range(2, 12):
        inside = data.environment == environment
        for held in (number_of(data), data.y, data.domain):
            assert torch.equal(held[inside], held[first])
    assert not torch.equal(is_green(data)[data.environment == 6], is_green(data)[data.environment == 5])
    inside = data.environment == data.environments.index("p=0.3")
    assert torch.equal(alone.x[alone.environment == 1], data.x[inside])
    assert not torch.equal(data.group, load(path, seed=1).group)


def test_colours_agree_with_the_noisy_label_as_often_as_p_says(tmp_path: Path):
    """4,000 images, 800 in a test environment: near p within four standard deviations; exactly for p = 0 and 1.

    Label 0 is green where colour agrees, label 1 red.
    """
    data = load(numbered(tmp_path, 4000), train_p=(0.9,))
    agrees = is_green(data) == (data.y == 0)
    for environment, p in enumerate((0.9, *(n / 10 for n in range(11)))):
        inside = data.environment == environment
        count = int(inside.sum())
        assert count == (3200 if environment == 0 else 800)
        assert abs(int(agrees[inside].sum()) - p * count) <= 4 * sqrt(count * p * (1 - p))


def test_labels_are_flipped_once_an_original_at_the_rate_asked_for(tmp_path: Path):
    """Without noise the label is whether the digit is at least 5; noise changes 1,000 of 4,000, +- 4 * sqrt(750)."""
    path = numbered(tmp_path, 4000)
    clean, noisy, flipped = (load(path, label_noise=noise, test_p=(0.5,)) for noise in (0.0, 0.25, 1.0))
    truth = (number_of(clean) % 10 >= 5).long()
    assert len(truth) == 4000
    assert torch.equal(clean.y, truth)
    assert torch.equal(flipped.y, 1 - truth)
    assert abs(int((noisy.y != truth).sum()) - 1000) <= 4 * sqrt(750)


def test_each_client_trains_in_one_environment_drawn_from_the_given_ones(tmp_path: Path):
    """With p of 0 and 1 a client's colours always or never agree; among 40 clients both occur."""
    data = load(numbered(tmp_path, 4000), clients=40, train_p=(0.0, 1.0), test_p=(1.0,))
    train = data.environment == 0
    agrees = (is_green(data) == (data.y == 0))[train].float()
    of_client = [agrees[data.domain[train] == client].mean().item() for client in range(40)]
    assert set(of_client) == {0.0, 1.0}
    assert data.train_environment is not None
    assert data.train_environment.float().tolist() == [of_client[client] for client in data.domain.tolist()]


# WaterBird ----------------------------------------------------------------------------------------


def test_the_release_takes_western_and_eastern_for_terns():
    species = "086.Pacific_Loon", "Eastern_Towhee", "Blue_Jay", "Mallard"
    release, words = ({name for name in species if is_waterbird(name, how)} for how in ("release", "words"))
    assert (words, release - words) == ({"086.Pacific_Loon", "Mallard"}, {"Eastern_Towhee"})


def test_the_mask_blends_bird_and_background():
    """Full mask: 200; none: 100; 51 of 255 is a fifth: 40 + 80 = 120."""
    bird, background = (torch.full((3, 1, 3), value, dtype=torch.uint8) for value in (200, 100))
    mask = torch.tensor([[[255, 0, 51]]], dtype=torch.uint8)
    assert blend(bird, mask, background)[0, 0].tolist() == [200, 100, 120]


WATER, LAND = ("Ivory_Gull", "Least_Tern", "Mallard"), ("Blue_Jay", "House_Wren", "Fish_Crow")
SHADES = 10  # photographs of each place


def birds(root: Path, images: int = 40) -> dict[str, object]:
    """Six species; bird n is a square of red n on a mask that covers the upper half; land is green, water blue."""

    def save(image: Image.Image, *place: str) -> None:
        file = root.joinpath(*place)
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)

    mask = Image.new("L", (8, 8))
    mask.paste(255, (0, 0, 8, 4))
    for number, name in enumerate((*WATER, *LAND)):
        for image in range(images):
            place = f"{number:03d}.{name}", f"{image:02d}.png"
            save(Image.new("RGB", (8, 8), (number * images + image, 0, 0)), "images", *place)
            save(mask, "masks", *place)
    for shade in range(100, 100 + SHADES):
        save(Image.new("RGB", (8, 8), (0, shade, 0)), "backgrounds", "land", "deeper", f"{shade}.png")
        save(Image.new("RGB", (8, 8), (0, 0, shade)), "backgrounds", "water", "deeper", f"{shade}.png")
    paths = {name: str(root / name) for name in ("masks", "backgrounds")}
    windows = {"waterbird_window": (2, 1), "landbird_window": (2, 1)}
    return {"path": str(root / "images"), "size": 8, "clients": 2, **paths, **windows}


def test_birds_stand_before_the_place_that_p_says(tmp_path: Path):
    """Two clients share one of three species of each class: 40 + 20 birds a class each, 12 of them for its tests.

    A bird's red channel encodes its species; green in the lower half is land, blue water.
    """
    data = WaterBird(**birds(tmp_path), test_p=(0.0, 1.0)).load(Streams(0))
    number, below = data.x[:, 0, 0, 0].long(), data.x[:, :, -1, 0].long()
    assert data.x.shape == (2 * 96 + 2 * 2 * 24, 3, 8, 8)
    assert torch.equal(data.y, (number < 3 * 40).long())
    assert (data.x[:, 1:, :4] == 0).all()  # nothing but bird above
    assert (below[:, 0] == 0).all()
    water = below[:, 2] > 0
    assert torch.equal(water, below[:, 1] == 0)
    agrees = water == (data.y == 1)
    assert [agrees[data.environment == e].float().mean().item() for e in (1, 2)] == [0.0, 1.0]
    assert 0.8 < agrees[data.environment == 0].float().mean() < 1
    for client in range(2):
        species = set((number[data.domain == client] // 40).tolist())
        assert species == {client, client + 1, client + 3, client + 4}
    assert len(set(number[data.domain == 0].tolist()) & set(number[data.domain == 1].tolist())) == 0


def test_backgrounds_are_used_up_before_one_comes_again_and_tests_have_their_own(tmp_path: Path):
    """Ten photographs of water: two for tests, eight for training.

    With p = 1 the 96 waterbirds in training need each of the eight twelve times, the 24 in the test each of the two.
    """
    data = WaterBird(**birds(tmp_path), train_p=(1.0,), test_p=(1.0,)).load(Streams(0))
    shades, environment = data.x[data.y == 1, 2, -1, 0].long() - 100, data.environment[data.y == 1]
    train, test = (torch.bincount(shades[environment == e], minlength=SHADES) for e in (0, 1))
    assert sorted(train.tolist()) == [0, 0] + [12] * 8
    assert test.tolist() == [12 * (count == 0) for count in train.tolist()]


def test_the_oracles_birds_stand_before_black_and_need_no_photographs(tmp_path: Path):
    settings = birds(tmp_path) | {"backgrounds": str(tmp_path / "none")}
    data = WaterBird(**settings, oracle=True, test_p=(0.0,)).load(Streams(0))
    assert data.x[:, :, 4:].max() == 0
    with refuses("none/land'", "data.backgrounds", "0 images"):
        WaterBird(**settings).load(Streams(0))
