//! All of the crate that is `unsafe`: calling code that only some processors can run, moving bytes
//! into vectors, and overwriting what a call has left behind.

mod avx2;
mod avx512;
#[cfg(test)]
pub(crate) mod memcheck;

pub(crate) use avx2::Avx2;
#[cfg(test)]
pub(crate) use avx2::narrow::Narrow;
pub(crate) use avx512::Avx512;
