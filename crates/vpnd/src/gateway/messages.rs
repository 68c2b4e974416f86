//! What the processes of a gateway say to each other.

pub(crate) mod auth;
