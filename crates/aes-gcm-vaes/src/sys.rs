//! All of the crate that is `unsafe`: calling code that only some processors can run, moving bytes
//! into vectors, and overwriting what a call has left behind.

/// Whether `has` accepts each feature, given its name and whether this processor has it. A macro,
/// for `is_x86_feature_detected` takes literals only.
macro_rules! all_features {
    ($has:ident, $($feature:tt),*) => {
        $($has($feature, is_x86_feature_detected!($feature)))&&*
    };
}

mod avx2;
mod avx512;
#[cfg(test)]
pub(crate) mod memcheck;

pub(crate) use avx2::Avx2;
#[cfg(test)]
pub(crate) use avx2::narrow::Narrow;
pub(crate) use avx512::Avx512;
