"""The data: which data set, how its files are read, and how it is split over the clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedapp.config.group import Case, ConfigGroup, UnusedIf, cases_of

EMBEDDED = Case("dataset = {dataset!r} is embedded. Name another dataset")
IDX = Case("{dataset} holds IDX files. Name a folder of Parquet files")
CIFAR = Case("{dataset} holds CIFAR batches. Name a folder of Parquet files")
CLASS_FOLDERS = Case("{dataset} holds images in class folders. Name a folder of Parquet files")
IMAGES = Case("dataset {dataset!r} holds images. Name one of text")
LABELLED = Case("each text of dataset {dataset!r} has a label. Name one without")
CHARACTERS = Case("symbols are characters. Set text-unit='words'")
TABLE = Case("dataset {dataset!r} holds a table of numbers. Name one of text")
NO_TABLE = Case(
    "dataset {dataset!r} holds images or text. Name a table, or its columns in input-keys"
)
TEST_SPLIT = Case(
    "dataset {dataset!r} has a test split, {test_split!r}. Set test-split={train_split!r} to test on a "
    "part of the training split instead"
)
INPUT_KEYS = Case("input-keys names the inputs. Set one of the two", lambda c: bool(c.input_keys))


class DataConfig(ConfigGroup):
    """The data set and how it is read, the partition and the transform."""

    title: ClassVar[str] = "Data"

    dataset: str = Field(
        "digits", min_length=1, description="Embedded data set, hub name, or local folder."
    )
    dataset_subset: Annotated[str, UnusedIf(EMBEDDED, CIFAR, CLASS_FOLDERS)] = Field(
        "", description="Configuration of a hub data set, or one of several sets in a folder."
    )
    train_split: Annotated[str, UnusedIf(EMBEDDED)] = Field(
        "train", min_length=1, description="Name of the training split."
    )
    test_split: Annotated[str, UnusedIf(EMBEDDED)] = Field(
        "test", min_length=1, description="Name of the test split."
    )
    input_key: Annotated[str, UnusedIf(EMBEDDED, IDX, CIFAR, INPUT_KEYS)] = Field(
        "", description="Input column. Empty: the first image column, or else text column."
    )
    input_keys: Annotated[str, UnusedIf(EMBEDDED, IDX, CIFAR, CLASS_FOLDERS)] = Field(
        "",
        description="Input columns of a table, with commas. Empty: all, if none holds images or text.",
    )
    categorical_keys: Annotated[str, UnusedIf(EMBEDDED, IDX, CIFAR, CLASS_FOLDERS, NO_TABLE)] = (
        Field("", description="Input columns of numbers or texts that are categories, with commas.")
    )
    missing: Annotated[
        Literal["refuse", "mean"], UnusedIf(EMBEDDED, IDX, CIFAR, CLASS_FOLDERS, NO_TABLE)
    ] = Field(
        "refuse",
        description="Missing inputs of a table. 'mean': the column's mean, or a category of its own.",
    )
    task: Annotated[
        Literal["auto", "classification", "regression"],
        UnusedIf(EMBEDDED, IDX, CIFAR, CLASS_FOLDERS, NO_TABLE),
    ] = Field("auto", description="Task of a table. 'auto': regression if labels are floats.")
    table_statistics: Annotated[str, UnusedIf(EMBEDDED, IDX, CIFAR, CLASS_FOLDERS, NO_TABLE)] = (
        Field(
            "",
            description="JSON file of a table's means, deviations, categories. Empty: from the data.",
        )
    )
    label_key: Annotated[str, UnusedIf(EMBEDDED, IDX)] = Field(
        "", description="Label column. Empty: the first class-label column, or the one named label."
    )
    client_key: Annotated[str, UnusedIf(EMBEDDED, IMAGES, LABELLED)] = Field(
        "",
        description="Column of a row's natural client (role, author). Empty: client_id, character_id, "
        "writer_id, author, user_id or user.",
    )
    text_unit: Annotated[
        Literal["auto", "characters", "words"],
        UnusedIf(EMBEDDED, IMAGES, TABLE),
    ] = Field("auto", description="Symbols of a text: bytes or words. 'auto': characters.")
    text_example: Annotated[
        Literal["stream", "line"],
        UnusedIf(EMBEDDED, IMAGES, TABLE, LABELLED),
    ] = Field(
        "stream",
        description="What is cut into sequences: a client's whole text, or each line.",
    )
    text_unroll: Annotated[int, UnusedIf(EMBEDDED, IMAGES, TABLE)] = Field(
        0,
        ge=0,
        le=10_000,
        description="Symbols a sequence. 0: 80 or 10 words; with labels, 256 or 64 words.",
    )
    text_vocabulary: Annotated[int, UnusedIf(EMBEDDED, IMAGES, TABLE, CHARACTERS)] = Field(
        10000,
        ge=2,
        description="Size of the vocabulary, with the unknown word for all other words.",
    )
    text_client_words: Annotated[int, UnusedIf(EMBEDDED, IMAGES, TABLE, LABELLED, CHARACTERS)] = (
        Field(
            5000,
            ge=0,
            description="Maximum of training words per client (text-unit words). 0: all.",
        )
    )
    test_fraction: Annotated[float, UnusedIf(EMBEDDED, TEST_SPLIT)] = Field(
        0.0, ge=0, lt=1, description="Share held out for testing where the data has no test split."
    )
    data_cache: str = Field(
        "", description="Folder of decoded data. Empty: $FEDAPP_CACHE, or ~/.cache/fedapp."
    )
    partitioner: str = Field("iid", description="How the training data is split over the clients.")
    transform: str = Field("scale", description="From stored arrays to network inputs.")

    def contradictions(self) -> Iterator[str]:
        """Yield also that the test split is the training split, unless a part is held out."""
        yield from super().contradictions()
        if self.test_split == self.train_split and not self.test_fraction:
            yield (
                f"test-split = {self.test_split!r}: is train-split, which the run trains on. Set "
                "test-split to another split, or also test-fraction=0.2 to hold out a part."
            )


READING_FIELDS = tuple(
    name for name, field in DataConfig.model_fields.items() if EMBEDDED in cases_of(field)
)
"""Fields on which the arrays of a data set that is read depend, apart from its content."""
