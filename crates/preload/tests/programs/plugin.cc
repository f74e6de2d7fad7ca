// Frees by operator delete, in a library that is loaded by dlopen or linked to frees.c.
#include <malloc.h>
#include <cstddef>
#include <new>
#include <string>
#include <vector>

extern "C" size_t free_in_plugin() {
    size_t freed = 0;
    std::vector<std::string *> all;
    all.reserve(4000);
    freed += malloc_usable_size(all.data());
    for (int i = 0; i < 4000; i++) {
        all.push_back(new std::string(100 + i, 'x'));
        freed += malloc_usable_size(all.back()) + malloc_usable_size(&(*all.back())[0]);
    }
    for (auto *text : all) delete text;
    char *array = new (std::nothrow) char[50000];
    freed += malloc_usable_size(array);
    delete[] array;
    return freed;
}
