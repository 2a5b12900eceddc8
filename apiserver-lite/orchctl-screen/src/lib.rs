//! Pure: the full screen of the command-line client. Keys ([`KeyReader`]) and updates from the server ([`Update`]) change a [`Screen`], which says what is to
//! be asked next ([`ScreenEffect`]); [`draw()`] shows it. The time is an argument.
//!
//! Memory is bounded by what is shown: one table ([`rows::ROWS_MAX`]), one page of text, the last lines of one log ([`log::LINES_MAX`]). No text of a server
//! reaches the terminal with characters that act on it ([`text`]).

mod draw;
mod key;
pub mod log;
mod page;
pub mod rows;
mod screen;
#[cfg(test)]
mod tests;
pub mod text;

pub use draw::draw;
pub use key::{KeyPress, KeyReader};
pub use rows::{RowTarget, Rows, View};
pub use screen::{Question, Screen, ScreenEffect, Update};
