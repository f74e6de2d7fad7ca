//! `lowtide top`: the processes of a host as a table.
//!
//! - [`rows`]: the table's contents, from a survey of the host.
//! - [`table`]: the table as text.
//! - [`state`], [`keys`], [`view`]: the live view.
//! - [`live`]: the loop between the survey, the terminal and the actions that keys request.

pub(crate) mod keys;
pub(crate) mod live;
pub(crate) mod rows;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod view;
