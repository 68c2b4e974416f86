//! The commands that do one thing and end, with the rights of their caller. None of them is
//! part of a daemon.

pub mod admin;
pub mod audit;
pub mod backup;
pub mod check;
pub mod devices;
pub mod doctor;
pub mod init;
pub mod migrate;
pub mod netcheck;
mod orders;
pub mod policy;
pub mod renew;
pub mod source;
pub mod store;
pub mod tokens;
pub mod users;
