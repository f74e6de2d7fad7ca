/* Finds the allocator that the program would use without this library: the next object that defines `free`.
 *
 * dlsym(RTLD_NEXT) would need libdl before glibc 2.34, which many programs do not load, and does not show which
 * object a symbol is from. dl_iterate_phdr is in every libc, lists objects in the order of symbol lookup while
 * the program starts, and neither allocates nor frees. */

#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* The tables that a symbol lookup in one object needs. */
struct object {
    ElfW(Addr) base;
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *gnu_hash, *hash;
    const uint16_t *versions;
};

static int holds(const struct dl_phdr_info *info, ElfW(Addr) address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return 1;
    }
    return 0;
}

/* Returns where a table is: glibc has relocated the entries of most objects, musl and the kernel's vDSO of none. */
static const void *table_at(const struct dl_phdr_info *info, ElfW(Addr) value) {
    ElfW(Addr) moved = info->dlpi_addr + value;
    return (const void *)(holds(info, value) ? value : holds(info, moved) ? moved : 0);
}

static int open_object(const struct dl_phdr_info *info, struct object *o) {
    const ElfW(Dyn) *entry = 0;
    *o = (struct object){.base = info->dlpi_addr};
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const void *)(o->base + info->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        const void *table = table_at(info, entry->d_un.d_ptr);
        switch (entry->d_tag) {
        case DT_SYMTAB: o->symbols = table; break;
        case DT_STRTAB: o->names = table; break;
        case DT_GNU_HASH: o->gnu_hash = table; break;
        case DT_HASH: o->hash = table; break;
        case DT_VERSYM: o->versions = table; break;
        }
    }
    return o->symbols && o->names;
}

static int is_same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Returns the address of a symbol, or 0 if it has another name, is undefined, or is a former version. */
static void *address_of(const struct object *o, uint32_t index, const char *name) {
    const ElfW(Sym) *symbol = &o->symbols[index];
    unsigned type = symbol->st_info & 15, bind = symbol->st_info >> 4;
    int is_usable = symbol->st_shndx != SHN_UNDEF && (bind == STB_GLOBAL || bind == STB_WEAK)
        && (type == STT_FUNC || type == STT_OBJECT || type == STT_NOTYPE)
        && !(o->versions && o->versions[index] & 0x8000);
    return is_usable && is_same(o->names + symbol->st_name, name) ? (void *)(o->base + symbol->st_value) : 0;
}

static void *find_by_gnu_hash(const struct object *o, const char *name) {
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1], filter_words = o->gnu_hash[2];
    const uint32_t *bucket = o->gnu_hash + 4 + filter_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    if (index < first || !index)
        return 0;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        void *found = (entry | 1) == (hash | 1) ? address_of(o, index, name) : 0;
        if (found || entry & 1)
            return found;
    }
}

/* Returns the address of a symbol that an object defines, or 0. */
static void *find(const struct object *o, const char *name) {
    if (o->gnu_hash)
        return find_by_gnu_hash(o, name);
    for (uint32_t i = 1; o->hash && i < o->hash[1]; i++) {
        void *found = address_of(o, i, name);
        if (found)
            return found;
    }
    return 0;
}
