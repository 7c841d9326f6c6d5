"""The processed traces of the original TrioSim: two tables, from which the dataflow is put together again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import triosim
from triosim.errors import TraceError
from triosim.trace import Trace

# A linear layer, its loss and momentum SGD. As in the published tables, the matrix product's row names only its transposed
# weight, and the rows of what moves no data are missing.
TRACE = """\
OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatime,Operator_cudatimenooverlap,InputSize,OutputSize,gpuid,stage,tpflag
1,aten::linear,[4; 6; 8],[10],20,18,[32; 128; 16],[64],0,forward,1
2,aten::cross_entropy_loss,[10; 12],[14],6,5,[64; 4],[1],0,forward,0
3,aten::ones_like,[14],[16],1,1,[1],[1],0,forward,0
4,autograd::engine::evaluate_function: LogSoftmaxBackward0,[16; 17],[18],3,3,[1; 64],[64],0,backward,0
5,autograd::engine::evaluate_function: AddmmBackward0,[20],[22],40,38,[128],[128],0,backward,1
6,aten::_foreach_mul_,[40; 42],[],2,2,[128; 16],[],0,optimizer,0
7,aten::_foreach_add_,[40; 42; 30; 32],[],2,2,[128; 16; 128; 16],[],0,optimizer,0
8,aten::_foreach_add_,[6; 8; 40; 42],[],2,2,[128; 16; 128; 16],[],0,optimizer,0
"""
TENSORS = """\
Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid
0,4,"[4, 8]",32,4,input,5,0
1,6,"[16, 8]",128,4,weight,7,0
2,8,[16],16,4,bias=None,9,0
3,10,"[4, 16]",64,4,output,11,0
4,12,[4],4,8,target,13,0
5,14,[],1,4,output,15,0
6,16,[],1,4,grad_output,100,0
7,17,"[4, 16]",64,4,input,101,0
8,18,"[4, 16]",64,4,output,102,0
9,20,"[8, 16]",128,4,input,7,0
10,22,"[16, 8]",128,4,output,7,0
11,30,"[16, 8]",128,4,output,103,0
12,32,[16],16,4,output,104,0
13,40,"[16, 8]",128,4,input,105,0
14,42,[16],16,4,input,106,0
15,6,"[16, 8]",128,4,input,7,0
16,99,[],0,0,weight,0,0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a100_tiny_bs4"
    place.mkdir()
    (place / "trace.csv").write_text(TRACE)
    (place / "tensor.csv").write_text(TENSORS)
    return place


def operator(trace: Trace, name: str) -> triosim.Operator:
    return next(one for one in trace.operators if one.name == name)


def shapes(tensors: tuple[triosim.Tensor, ...], category: str) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in tensors if tensor.category == category]


def test_times_are_microseconds_with_and_without_gaps(folder: Path) -> None:
    linear = triosim.load_trace(folder).operators[0]
    assert linear.seconds == 20e-6
    assert linear.busy_seconds == 18e-6


def test_name_and_batch_size_are_found(folder: Path) -> None:
    trace = triosim.load_trace(folder)
    assert (trace.model, trace.gpu, trace.batch_size) == ("tiny", "A100", 4)


def test_backward_operators_have_the_layer_that_they_differentiate(folder: Path) -> None:
    trace = triosim.load_trace(folder)
    backward = [(one.name, one.layer, one.forward) for one in trace.operators if one.phase == "backward"]
    assert backward == [
        ("aten::ones_like", "cross_entropy_loss_1", None),
        ("LogSoftmaxBackward0", "cross_entropy_loss_1", 2),
        ("AddmmBackward0", "linear_1", 1),
    ]


def test_a_matrix_product_gets_back_its_gradients(folder: Path) -> None:
    trace = triosim.load_trace(folder)
    product, before = operator(trace, "AddmmBackward0"), operator(trace, "LogSoftmaxBackward0")
    assert before.outputs[0] in product.inputs
    assert shapes(product.inputs, "input") == [(4, 8)]
    assert shapes(product.outputs, "gradient") == [(16, 8), (16,)]


def test_gradients_and_states_know_their_parameter(folder: Path) -> None:
    trace = triosim.load_trace(folder)
    weight, bias = trace.parameters
    owners = {
        category: [
            tensor.parameter for tensor in trace.tensors.values() if tensor.category == category and tensor.parameter
        ]
        for category in ("gradient", "optimizer_state")
    }
    assert owners == {"gradient": [weight, bias], "optimizer_state": [weight, bias]}


def test_what_the_backward_pass_reads_and_nobody_made_was_saved_by_the_forward_pass(folder: Path) -> None:
    loss = operator(triosim.load_trace(folder), "aten::cross_entropy_loss")
    assert shapes(loss.outputs, "activation") == [(4, 16)]


def test_a_transposed_weight_is_the_same_bytes(folder: Path) -> None:
    trace = triosim.load_trace(folder)
    assert len(trace.parameters) == 2
    assert sum(tensor.numel for tensor in trace.parameters.values()) == 144


WRONG = [
    ("trace.csv", "20,18", "-20,18", r"trace\.csv: line 2: Operator_cudatime: -20 is negative"),
    ("trace.csv", "20,18", "nan,18", r"trace\.csv: line 2: Operator_cudatime: nan"),
    ("trace.csv", "20,18", ",18", r"trace\.csv: line 2: Operator_cudatime: '' is not a time"),
    ("trace.csv", "[4; 6; 8]", "[4; 77; 8]", r"trace\.csv: line 2: Operator_input: there is no tensor 77"),
    ("trace.csv", "[4; 6; 8]", "4", r"trace\.csv: line 2: Operator_input: '4' is not a list"),
    ("trace.csv", "0,forward,1", "0,forwards,1", r"line 2: stage: 'forwards' is unknown; did you mean 'forward'\?"),
    ("trace.csv", "Operator_cudatime,", "Time,", r"trace\.csv: line 1: there is no column Operator_cudatime"),
    (
        "trace.csv",
        "\n3,",
        "\n1,",
        r"line 4: OperatorID: operator 1 comes after operator 2; operators are in the order in which",
    ),
    (
        "trace.csv",
        "[6; 8; 40; 42],[],2,2,[128; 16; 128; 16],[],0,optimizer",
        "[6],[],2,2,[128],[],0,forward",
        "line 9: stage: a forw",
    ),
    ("tensor.csv", "[4, 8]", "[4, 9]", r"tensor\.csv: line 2: TensorNumElement: 32 elements"),
    ("tensor.csv", "32,4,input", "32,3,input", r"tensor\.csv: line 2: TensorEachByte"),
    ("tensor.csv", "0,4,", "0,x,", r"tensor\.csv: line 2: TensorID: 'x' is not an integer"),
    ("tensor.csv", '15,6,"[16, 8]"', '15,6,"[8, 16]"', r"tensor\.csv: line 17: TensorID: tensor 6 differs"),
]


@pytest.mark.parametrize(("file", "old", "new", "said"), WRONG)
def test_an_error_names_file_line_and_column(folder: Path, file: str, old: str, new: str, said: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(TraceError, match=said):
        triosim.load_trace(folder)


def test_a_truncated_table_is_noticed(folder: Path) -> None:
    (folder / "trace.csv").write_text("\n".join(TRACE.splitlines()[:3])[:-40])
    with pytest.raises(TraceError, match=r"trace\.csv: line 3: .*truncated"):
        triosim.load_trace(folder)


def test_an_empty_table_has_no_operators(folder: Path) -> None:
    (folder / "trace.csv").write_text(TRACE.splitlines()[0] + "\n")
    with pytest.raises(TraceError, match=r"trace\.csv: the trace has no operators"):
        triosim.load_trace(folder)


def test_one_table_alone_is_not_enough(folder: Path) -> None:
    (folder / "tensor.csv").unlink()
    with pytest.raises(TraceError, match=r"tensor\.csv: is missing"):
        triosim.load_trace(folder)


@pytest.fixture(scope="module")
def vgg(data_dir: Path) -> Trace:
    return triosim.load_trace(data_dir / "traces" / "h100_vgg13_bs128")


class TestMeasured:
    """The VGG-13 trace of an H100, batch 128."""

    def test_the_network_is_vgg_13(self, vgg: Trace) -> None:
        assert (vgg.batch_size, vgg.gpu) == (128, "H100")
        assert len(vgg.parameters) == 26
        assert sum(parameter.numel for parameter in vgg.parameters.values()) == 133_047_848

    def test_each_parameter_has_a_gradient_made_in_the_backward_pass_and_two_states(self, vgg: Trace) -> None:
        made = [
            tensor.parameter
            for operator in vgg.operators
            if operator.phase == "backward"
            for tensor in operator.outputs
            if tensor.parameter is not None
        ]
        assert sorted(made) == sorted(vgg.parameters)
        states = [tensor.parameter for tensor in vgg.tensors.values() if tensor.category == "optimizer_state"]
        assert sorted(filter(None, states)) == sorted(2 * list(vgg.parameters))

    def test_every_backward_operator_is_in_a_layer_of_the_forward_pass(self, vgg: Trace) -> None:
        layers = {operator.layer for operator in vgg.operators if operator.phase == "forward"}
        assert {operator.layer for operator in vgg.operators if operator.phase == "backward"} <= layers

    def test_activation_gradients_flow_from_the_loss_to_the_first_layer(self, vgg: Trace) -> None:
        backward = [operator for operator in vgg.operators if operator.phase == "backward"]
        for before, after in pairwise(backward):
            assert {tensor.storage for tensor in before.outputs} & {tensor.storage for tensor in after.inputs}

    def test_the_sum_of_times_is_the_table_s(self, vgg: Trace) -> None:
        assert vgg.seconds == pytest.approx(94.462e-3)
