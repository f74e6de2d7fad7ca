//! From records to what people look at: one file for each format.
//!
//! [`read`] opens records, [`parts`] joins those of one study, [`view`] decides what is drawn (which lines, over which span, in which
//! colour) and [`table`] what is told in numbers; the rest only puts that into a format.

pub mod csv;
pub mod html;
pub mod inspection;
pub mod lay;
pub mod load;
pub mod markdown;
pub mod owners;
pub mod parts;
pub mod png;
pub mod read;
pub mod release;
pub mod scale;
pub mod svg;
pub mod table;
pub mod terminal;
pub mod view;
pub mod whole;
