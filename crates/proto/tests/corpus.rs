//! Replays the committed fuzz corpora, with the bodies of the fuzz targets themselves.

#[path = "../../../fuzz/bodies/control_message.rs"]
mod control_message;
#[path = "../../../fuzz/bodies/inner_packet.rs"]
mod inner_packet;
#[path = "../../../fuzz/bodies/offload.rs"]
mod offload;
#[path = "../../../fuzz/bodies/outer_header.rs"]
mod outer_header;

use std::path::Path;

/// Runs `body` on every file of a target's corpus, and on all beginnings of it.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in folder.read_dir().expect("the corpus is committed") {
        let path = entry.expect("the folder can be read").path();
        let data = std::fs::read(&path).expect("the file can be read");
        // Shown only if the body panics.
        println!("{}", path.display());
        (0..=data.len().min(200)).for_each(|len| body(&data[..len]));
        body(&data);
        files += 1;
    }
    assert!(files > 0, "{} is empty", folder.display());
}

#[test]
fn control_messages() {
    replay("control_message", control_message::run);
}

#[test]
fn inner_packets() {
    replay("inner_packet", inner_packet::run);
}

#[test]
fn offloads() {
    replay("offload", offload::run);
}

#[test]
fn outer_headers() {
    replay("outer_header", outer_header::run);
}
