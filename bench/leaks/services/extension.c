// A C extension of CPython that forgets a reference: lose(n) makes a bytearray of n bytes, and never drops it.
#include <Python.h>

static PyObject *lose(PyObject *self, PyObject *size) {
    (void)self;
    PyByteArray_FromStringAndSize(NULL, PyLong_AsSsize_t(size));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"lose", lose, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "extension", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_extension(void) { return PyModule_Create(&module); }
