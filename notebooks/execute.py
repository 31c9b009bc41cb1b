"""Execute the notebooks here and keep their outputs: ``python notebooks/execute.py``, or names.

What differs from run to run without meaning (times of execution, versions of the kernel) is left
out. Pages with times should be run while the machine has nothing else to do.
"""

import base64
import io
import sys
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

HERE = Path(__file__).parent


def execute(path):
    """The notebook of a file, run from top to bottom in this folder."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, kernel_name="python3", record_timing=False, coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = smaller(picture)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def smaller(picture):
    """A PNG in base64 with 256 colors, half the size and no difference to the eye."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(256).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(execute(path), path)
        print(path.name, flush=True)
