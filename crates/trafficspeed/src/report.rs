//! How results are shown: a table for people, JSON and CSV for programs, one HTML page for papers.
//!
//! Reports are pure functions of an experiment's plain data ([`results::Results`]); they measure
//! nothing and invent nothing.

pub mod block;
pub mod chart;
pub mod claims;
pub mod curves;
pub mod delivered;
pub mod document;
pub mod files;
pub mod flent;
pub mod grid;
pub mod headline;
pub mod home;
pub mod json;
pub mod link;
pub mod load;
pub mod model;
pub mod noise;
pub mod observed;
pub mod page;
pub mod pictures;
pub mod published;
pub mod results;
pub mod side_by_side;
pub mod suite;
pub mod systems;
pub mod table;
pub mod verify;
