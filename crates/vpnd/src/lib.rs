//! The daemon's library: everything behind the `vpnd` command line.
#![deny(unsafe_code)]

pub mod sys;
