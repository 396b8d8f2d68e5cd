"""The csx target where its SDK is not: settings of a cluster, reading CIRH, and the target's own words."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import find_targets, get_target, peek_target
from portwright.errors import UnsupportedError, UserError
from portwright.job.runconfig import RunConfig
from portwright.job.target_list import describe_targets, provide_environment
from portwright.targets.csx.cluster import explain_cluster_error, read_settings
from portwright.targets.csx.refusal import read_cirh


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTWRIGHT_ENVS", str(tmp_path / "envs"))
    monkeypatch.setenv("CSCONFIG_PATH", str(tmp_path / "nowhere"))


def settings(flags: dict[str, Any] | None = None, **config: Any) -> Any:
    return read_settings(flags or {}, RunConfig.model_validate(config))


def test_a_flag_goes_before_runconfig() -> None:
    found = settings(
        {"mgmt_address": "a:1", "num_csx": "2"}, mgmt_address="b:2", num_csx=4, job_labels=["x=y"]
    )
    assert (found.address, found.source) == ("a:1", "--mgmt_address")
    assert found.options == {"num_csx": 2, "job_labels": ["x=y"]}
    assert settings(mgmt_address="b:2").address == "b:2"
    assert settings({"cs_ip": "10.0.0.1"}).address == "10.0.0.1:9000"


def test_without_an_address_the_missing_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        settings().require_address()
    for word in (
        "runconfig.mgmt_address",
        "--mgmt_address",
        str(tmp_path / "nowhere"),
        "--validate_only",
        "--on_cpu",
    ):
        assert word in caught.value.cure


def test_the_sdks_own_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "nowhere").write_text("{}")
    found = settings()
    found.require_address()
    found.check_reachable()  # the SDK reads the address from there
    assert found.source == str(tmp_path / "nowhere")


@pytest.mark.parametrize("address", ["cluster", "x;touch y:9000", "host:port", "h:99999", "", "a b:1", ":80"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match="--mgmt_address is"):
        settings({"mgmt_address": address})


@pytest.mark.parametrize("address", ["cluster.example:443", "10.1.2.3:9000", "[fe80::1]:443"])
def test_addresses(address: str) -> None:
    assert settings({"mgmt_address": address}).address == address


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_counts_are_counts(value: str) -> None:
    with pytest.raises(UserError, match="--num_csx is"):
        settings({"num_csx": value})


def test_an_address_that_does_not_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnsupportedError, match="does not answer: connection refused"):
        settings({"mgmt_address": f"127.0.0.1:{port}"}).check_reachable()


def test_errors_of_others_are_not_the_clusters() -> None:
    assert explain_cluster_error(ValueError("mine"), settings()) is None
    trouble = type("ClusterConfigError", (RuntimeError,), {})("\nno address\nmore")
    assert "no address" in str(explain_cluster_error(trouble, settings()))


CIRH = """#loc0 = loc(unknown)
module  {
  func @graph(%arg0: tensor<8x8xf32> {tf.resource_name = "cirh.Not"} loc(unknown)) -> tensor<f32> {
    %cst = cirh.Const dense<-1.0> : tensor<8xf32> loc(#loc1)
    %0 = cirh.Cast %arg0 {Truncate = false} : tensor<8x8xf32> -> tensor<8x8x!cs.cb16> loc(#loc4)
    %1:2 = "cirh.Sort"(%0) : (tensor<f16>) -> (tensor<?x3xf16>, tensor<4xi64>) loc(#loc1)
    %2 = cirh.Cast %0 : tensor<f32> -> tensor<i1> loc(#loc1)
    return %2 : tensor<i1> loc(#loc0)
  } loc(#loc0)
}
#loc1 = loc("x.fwd/aten::mul"(callsite("cirh.Mul tensor<1xf64>"("a.py":1:0))))
"""


def test_cirh_is_counted(tmp_path: Path) -> None:
    (tmp_path / "cirh.mlir").write_text(CIRH)
    found = read_cirh(tmp_path / "cirh.mlir")
    assert found is not None
    assert found.ops == {"Cast": 2, "Const": 1, "Sort": 1}
    assert found.dtypes == {"f32": 3, "f16": 2, "!cs.cb16": 1, "i64": 1, "i1": 1}
    assert found.num_ops == 4


@pytest.mark.parametrize("text", [None, "", "module {\n}\n"])
def test_an_empty_or_missing_cirh_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "cirh.mlir").write_text(text)
    assert read_cirh(tmp_path / "cirh.mlir") is None


def test_the_target_is_named_by_its_word_or_its_flag() -> None:
    assert peek_target(["csx", "--mode", "train"]) is get_target("CSX")
    assert peek_target(["-cs", "1.2.3.4", "-m", "train"]) is get_target("CSX")
    assert peek_target(["--cs_ip=1.2.3.4"]) is get_target("CSX")
    for words in ([], ["--mode", "train"], ["CSX", "--help"], ["nonsense"]):
        assert peek_target(words) is None


@pytest.mark.skipif(get_target("CSX").environment.is_here(), reason="the Cerebras SDK is in this environment")
def test_without_the_sdk_it_says_how_to_get_it() -> None:
    reason = get_target("CSX").why_not()
    assert reason is not None
    assert "portwright env csx" in reason
    row = next(row for row in describe_targets() if row["name"] == "CSX")
    assert (row["available"], row["interpreter"], row["sdk_version"]) == (False, None, None)
    assert "not installed" in row["missing"]
    assert "portwright env csx" in row["cure"]


def test_targets_say_their_software() -> None:
    row = next(row for row in describe_targets() if row["name"] == "CPU")
    assert row["available"]
    assert row["sdk"] == "torch"
    assert row["sdk_version"].startswith("2.")
    assert row["interpreter"] == sys.executable
    assert {row["name"] for row in describe_targets()} == set(find_targets())


def test_a_target_without_an_environment() -> None:
    with pytest.raises(UserError, match="needs none of its own"):
        provide_environment("cpu", None, False, print)
    with pytest.raises(UserError, match="Give one of them"):
        provide_environment("csx", Path(sys.executable), True, print)
