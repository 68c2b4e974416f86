//! The original measurements: IP-SAN middleware that encrypts above TCP, against IPsec (Ochanomizu
//! University and others, about 2006; Linux 2.4, Gigabit Ethernet, Dummynet, 3DES, TCP window 8
//! MB). Shown next to ours, never used as a result.

/// Columns of [`RATIOS`] and [`CPU`].
pub const AHEAD: [u32; 5] = [2, 4, 6, 8, 10];

/// One-way delay in ms, and throughput with 2, 4, 6, 8, 10 blocks in progress as a multiple of that
/// of IPsec, mean over block sizes from 8 KB to 2 MB.
pub const RATIOS: [(u32, [f64; 5]); 8] = [
    (0, [0.83, 0.91, 0.93, 0.92, 0.87]),
    (1, [0.97, 1.37, 1.45, 1.46, 1.42]),
    (2, [1.08, 1.73, 2.00, 2.04, 1.98]),
    (4, [1.34, 2.21, 2.79, 3.20, 3.24]),
    (8, [1.49, 2.67, 3.52, 4.20, 4.63]),
    (16, [1.90, 3.35, 4.36, 5.18, 5.85]),
    (32, [2.22, 3.90, 4.57, 5.42, 6.22]),
    (64, [2.50, 4.00, 5.08, 5.96, 6.64]),
];

/// One-way delay in ms, CPU use at the target with IPsec, and with 2, 4, 6, 8, 10 blocks in
/// progress, percent.
pub const CPU: [(u32, f64, [f64; 5]); 8] = [
    (0, 77.9, [78.4, 86.4, 88.5, 87.1, 83.0]),
    (1, 57.0, [64.5, 83.4, 85.8, 87.8, 86.1]),
    (2, 47.4, [55.1, 77.5, 85.6, 87.2, 86.0]),
    (4, 39.7, [48.1, 69.7, 78.7, 83.7, 84.8]),
    (8, 22.5, [37.2, 57.2, 67.0, 72.2, 74.3]),
    (16, 13.0, [29.9, 46.9, 54.4, 59.4, 63.5]),
    (32, 7.2, [20.3, 31.1, 30.8, 33.9, 37.0]),
    (64, 3.6, [11.7, 15.9, 17.7, 18.8, 20.1]),
];

/// One-way delay in ms, and the best throughput of any block size in MB/s: plain, IPsec, theirs.
pub const PEAKS: [(u32, [f64; 3]); 2] = [(16, [4.9, 2.3, 7.8]), (64, [1.2, 0.6, 2.8])];

/// At 16 ms one way: block bytes, then MB/s without overlap predicted and measured, and with two
/// blocks in progress.
pub const MODEL_16_MS: [(u32, [f64; 4]); 9] = [
    (8 << 10, [0.118, 0.239, 0.234, 0.410]),
    (16 << 10, [0.229, 0.235, 0.448, 0.444]),
    (32 << 10, [0.431, 0.421, 0.830, 0.864]),
    (64 << 10, [0.771, 0.794, 1.446, 1.561]),
    (128 << 10, [1.276, 1.342, 2.299, 2.581]),
    (256 << 10, [1.896, 2.069, 3.259, 3.594]),
    (512 << 10, [2.505, 2.831, 4.120, 4.911]),
    (1 << 20, [2.984, 2.810, 4.744, 4.751]),
    (2 << 20, [3.300, 2.397, 5.138, 4.324]),
];

/// Their parameters in MB/s: what lies below encryption, and encryption (decryption was taken to be
/// as fast).
pub const LOWER: f64 = 11.584;
/// See [`LOWER`].
pub const ENCRYPT: f64 = 10.822;
