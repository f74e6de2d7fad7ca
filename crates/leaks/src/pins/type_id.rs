//! The number of a block's type, with the age of the block.

use lowtide_model::pins::BlockAge;

/// The number of a type, 0 if a block has none, with the age of the block in its highest bits.
pub(super) type TypeId = u16;

/// The block was in use when the watch began.
pub(super) const OLDER: TypeId = 1 << 15;
/// The block was not in use when the watch began.
pub(super) const NEW: TypeId = 1 << 14;
const AGES: TypeId = OLDER | NEW;
/// Maximum number of types.
pub(super) const MAX_TYPES: usize = 4096;
const _: () = assert!(MAX_TYPES < NEW as usize, "the numbers of types have other bits");

/// Returns the number of a type without the age of the block.
pub(super) fn type_of(type_id: TypeId) -> TypeId {
    type_id & !AGES
}

/// Returns the age of a block.
pub(super) fn age_of(type_id: TypeId) -> BlockAge {
    match type_id & AGES {
        OLDER => BlockAge::BeforeWatch,
        NEW => BlockAge::SinceWatch,
        _ => BlockAge::Unknown,
    }
}
