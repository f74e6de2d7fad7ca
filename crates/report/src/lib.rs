//! Formats results for people: studies, inspections, releases and loads. One module for each
//! format.
//!
//! [`read`] opens the records of studies; [`merge_shards`] and [`overlay`] combine them. A [`View`]
//! decides what is drawn (lines, span, colours), and the tables, which numbers are printed; the
//! formats only render both.

pub mod black_box;
mod blocks;
pub mod cgroup;
mod columns;
pub mod csv;
pub mod difference;
pub mod divide;
pub mod group;
mod heaps;
pub mod html;
pub mod inspection;
pub mod leaks;
pub mod load;
pub mod markdown;
mod merge_shards;
mod overlay;
pub mod owners;
pub mod pins;
pub mod png;
pub mod read;
pub mod release;
mod scale;
mod screen;
mod stacks;
pub mod svg;
mod table;
pub mod terminal;
pub mod text;
mod view;

pub use merge_shards::merge_shards;
pub use overlay::overlay;
pub use scale::{byte_axis, time_label};
pub use screen::Screen;
pub use view::View;
