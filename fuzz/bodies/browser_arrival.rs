//! Any bytes as the request by which a browser comes back to a client at the loopback address:
//! nothing panics, a grant comes out of it only with the state of this login, and what is read was
//! there, once.

use crate::worker::read_arrival;

const STATE: &str = "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM";
const OTHER: &str = "BAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ";

/// Checks one input.
pub fn run(data: &[u8]) {
    let Some((issuer, grant)) = read_arrival(data, STATE) else { return };
    assert_eq!(read_arrival(data, OTHER), None, "another login's");
    let line = data.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).expect("it was read");
    let query = line.split_once('?').expect("it has one").1;
    let query = query.strip_suffix(" HTTP/1.1").expect("it has a version");
    let values = |name: &str| -> Vec<String> {
        let all = form_urlencoded::parse(query.as_bytes()).filter(|(known, _)| known == name);
        all.map(|(_, value)| value.into_owned()).collect()
    };
    assert_eq!(values("state"), [STATE]);
    assert_eq!(values("iss"), [issuer]);
    assert_eq!(
        (values("code").len(), values("error").len()),
        (grant.is_some().into(), grant.is_none().into())
    );
    assert!(line.starts_with("GET /?"), "{line}");
}
