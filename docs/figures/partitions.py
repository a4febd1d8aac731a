"""Draw docs/images/partition-*.png from real labels: Seo et al. 2024, Figs. 6 and 8, and shards.

    python docs/figures/partitions.py FOLDER

FOLDER holds ``cifar10`` and ``mnist`` as folders of Parquet files, ``train-*.parquet``, with a
column ``label``. Prints the numbers that the documentation states.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fedapp.analysis.partition import label_counts, labels_per_client, update_multiplier
from fedapp.data.dataset import Examples
from fedapp.data.partition.dirichlet import Dirichlet
from fedapp.data.partition.iid import Iid
from fedapp.data.partition.sgm import Sgm
from fedapp.data.partition.shards import Shards
from fedapp.runs.partition_figure import draw_comparison, draw_partition
from fedapp.studies.papers.figures.style import PNG, reduce_colors

IMAGES = Path(__file__).resolve().parent.parent / "images"
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple("0123456789")


def read_labels(folder: Path, split: str) -> Examples:
    files = sorted(folder.glob(f"{split}-*.parquet"))
    if not files:
        sys.exit(f"{folder}: holds no {split}-*.parquet. Give the folder above cifar10 and mnist.")
    labels = np.concatenate(
        [pq.read_table(f, columns=["label"])["label"].to_numpy() for f in files]
    )
    return Examples(labels, labels)


def draw_seo(cifar: Examples) -> None:
    figure_6 = {
        f"SGM {sigma:g}": Sgm(sigma=sigma).split(cifar, 10, 0) for sigma in (0.0, 0.3, 0.6, 0.9)
    }
    draw_comparison(figure_6, cifar.targets, CIFAR, IMAGES / "partition-seo-fig6", PNG)
    figure_8 = {
        f"α = {alpha:g}": Dirichlet(alpha=alpha).split(cifar, 10, 0)
        for alpha in (0.1, 0.5, 1.0, 10.0, 100.0)
    }
    draw_comparison(figure_8, cifar.targets, CIFAR, IMAGES / "partition-seo-fig8", PNG)
    draws = [update_multiplier(Sgm(sigma=0.9).split(cifar, 10, s).sizes) for s in range(1_000)]
    low, high = np.percentile(draws, [5, 95])
    error = np.std(draws) / np.sqrt(len(draws))
    print(
        f"sgm, sigma = 0.9, K = 10: multiplier {np.mean(draws):.3f} ± {error:.3f} as the mean of "
        f"1,000 partitions (90 % of them between {low:.2f} and {high:.2f})"
    )


def draw_mcmahan(folder: Path, cifar: Examples) -> None:
    train, test = (read_labels(folder / "mnist", split) for split in ("train", "test"))
    shards = Shards().split(train, 100, 0)
    counts = label_counts(shards.indices, shards.offsets, train.targets, 10)
    path, title = IMAGES / "partition-mnist-shards", "MNIST, 2 shards a client"
    draw_partition(shards, train.targets, DIGITS, path, title, PNG)
    cifar_test = read_labels(folder / "cifar10", "test")
    mnist_iid, cifar_iid = Iid().split(train, 100, 0), Iid().split(cifar, 100, 0)
    for name, partition in (
        ("MNIST, iid", mnist_iid),
        ("MNIST test, iid", Iid().split_test(test, train, mnist_iid, 0)),
        ("MNIST, shards", shards),
        ("CIFAR-10, iid", cifar_iid),
        ("CIFAR-10 test, iid", Iid().split_test(cifar_test, cifar, cifar_iid, 0)),
    ):
        print(f"{name}: {partition.num_clients} clients of {sorted(set(partition.sizes.tolist()))}")
    print(f"MNIST, shards: number of labels -> clients: {labels_per_client(counts)}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    IMAGES.mkdir(parents=True, exist_ok=True)
    cifar = read_labels(folder / "cifar10", "train")
    draw_seo(cifar)
    draw_mcmahan(folder, cifar)
    for path in IMAGES.glob("partition-*.png"):
        reduce_colors(path)


if __name__ == "__main__":
    main()
