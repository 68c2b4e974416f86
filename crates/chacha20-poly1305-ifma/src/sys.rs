//! All of the crate that is `unsafe`: calling code that only some processors can run, moving bytes
//! into vectors, and overwriting what a call has left behind.

mod avx512;
// Tests of constant time ask valgrind in the same way.
#[cfg(test)]
#[path = "../../aes-gcm-vaes/src/sys/memcheck.rs"]
pub(crate) mod memcheck;

pub(crate) use avx512::Avx512;
#[cfg(test)]
pub(crate) use avx512::saved_registers;
