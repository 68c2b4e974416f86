//! The person at this process: a question at the terminal, a password from there or a file, a page
//! in the browser, from where the person works. For the client that a person starts, and for the
//! commands of a user without root.

pub mod browser;
pub mod credentials;
pub mod session;
pub mod terminal;
