//! The parts of a home's traffic, and the load that stands for each.

use serde::{Deserialize, Serialize};

use super::results::HomeSettings;
use crate::load::message::Messages;
use crate::load::message::open_loop::OpenLoop;
use crate::load::page::Pages;
use crate::load::task::{Sockets, Task};
use crate::load::tcp::{Job, Shape, Way};

/// A voice packet is of no use after this, one way, in milliseconds: the limit for most uses of
/// ITU-T G.114.
const LATE_AFTER_MS: u32 = 150;
/// Voice: 20 ms of G.711 with their RTP header, 200 bytes with UDP and IPv4.
pub const VOICE: Datagrams = Datagrams { bytes: 172, at_once: 1, per_second: 50 };
/// The picture of the call: every 40 ms one of ten packets at once, which show whether a path keeps
/// the order.
pub const VIDEO: Datagrams = Datagrams { bytes: 1_100, at_once: 10, per_second: 250 };
/// A page, every second.
const PAGE_CONNECTIONS: u32 = 6;
const PAGE_REQUESTS: u32 = 12;
const PAGE_REQUEST_BYTES: u32 = 400;
const PAGE_ANSWER_BYTES: (u32, u32) = (10_000, 300_000);
const PAGE_EVERY_MS: u32 = 1_000;
const WRITE_BYTES: u32 = 256 * 1024;

/// Datagrams at a steady rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Payload of each.
    pub bytes: u32,
    /// The number that leave at once.
    pub at_once: u32,
    pub per_second: u32,
}

/// One part of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flow {
    Pages,
    VoiceDown,
    VoiceUp,
    VideoDown,
    VideoUp,
    Download,
    Upload,
}

/// Flows that run at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Everything.
    #[default]
    AtOnce,
    Download,
    Upload,
    /// Voice and picture, both ways.
    Call,
    Pages,
}

impl Case {
    /// In the order in which they are measured.
    pub const ALL: [Self; 5] = [Self::AtOnce, Self::Download, Self::Upload, Self::Call, Self::Pages];

    /// Its flows. Tasks end one after the other, so those that wait for what is under way come
    /// before those that load the path.
    pub fn flows(self) -> &'static [Flow] {
        use Flow::{Download, Pages, Upload, VideoDown, VideoUp, VoiceDown, VoiceUp};
        match self {
            Self::AtOnce => &[Pages, VoiceDown, VoiceUp, VideoDown, VideoUp, Download, Upload],
            Self::Download => &[Download],
            Self::Upload => &[Upload],
            Self::Call => &[VoiceDown, VoiceUp, VideoDown, VideoUp],
            Self::Pages => &[Pages],
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtOnce => "all at once",
            Self::Download => "download alone",
            Self::Upload => "upload alone",
            Self::Call => "call alone",
            Self::Pages => "pages alone",
        }
    }
}

impl Flow {
    /// In the order of reports.
    pub const ALL: [Self; 7] = [
        Self::Download,
        Self::Upload,
        Self::VoiceDown,
        Self::VoiceUp,
        Self::VideoDown,
        Self::VideoUp,
        Self::Pages,
    ];
    /// Those of the call.
    pub const CALL: [Self; 4] = [Self::VoiceDown, Self::VoiceUp, Self::VideoDown, Self::VideoUp];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::VoiceDown => "voice down",
            Self::VoiceUp => "voice up",
            Self::VideoDown => "video down",
            Self::VideoUp => "video up",
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }

    /// The case in which nothing but its own kind runs.
    pub fn alone(self) -> Case {
        match self {
            Self::Pages => Case::Pages,
            Self::Download => Case::Download,
            Self::Upload => Case::Upload,
            Self::VoiceDown | Self::VoiceUp | Self::VideoDown | Self::VideoUp => Case::Call,
        }
    }

    /// Its name among the other flows of a case, or alone.
    pub fn in_case(self, case: Case) -> String {
        let others = if case == Case::AtOnce { case.name() } else { "alone" };
        format!("{}, {others}", self.name())
    }

    /// The load. The client connects, so what comes down goes backward.
    pub fn task(self, settings: &HomeSettings) -> Task {
        match self {
            Self::Download => bulk(settings, Way::Backward),
            Self::Upload => bulk(settings, Way::Forward),
            Self::VoiceDown => datagrams(VOICE, true),
            Self::VoiceUp => datagrams(VOICE, false),
            Self::VideoDown => datagrams(VIDEO, true),
            Self::VideoUp => datagrams(VIDEO, false),
            Self::Pages => Task::Pages(pages(settings)),
        }
    }
}

fn bulk(settings: &HomeSettings, way: Way) -> Task {
    Task::Bulk(Job {
        seed: settings.seed,
        streams: settings.streams,
        write_bytes: WRITE_BYTES,
        congestion: settings.congestion,
        shape: Shape { way, window: None, mss: None },
        ..Job::default()
    })
}

fn datagrams(Datagrams { bytes, at_once, per_second }: Datagrams, backward: bool) -> Task {
    Task::Messages(Messages {
        backward,
        length: bytes,
        bits_per_second: Some(u64::from(bytes) * 8 * u64::from(per_second)),
        open_loop: Some(OpenLoop { burst: at_once, late_after_us: LATE_AFTER_MS * 1_000 }),
        ..Messages::default()
    })
}

fn pages(settings: &HomeSettings) -> Pages {
    let (smallest, largest) = PAGE_ANSWER_BYTES;
    Pages {
        run_id: 0,
        seed: settings.seed,
        streams: PAGE_CONNECTIONS,
        requests: PAGE_REQUESTS,
        request: PAGE_REQUEST_BYTES,
        smallest,
        largest,
        every_ms: PAGE_EVERY_MS,
        sockets: Sockets { congestion: settings.congestion, ..Sockets::default() },
    }
}

pub fn pages_in_words(settings: &HomeSettings) -> String {
    let pages = pages(settings);
    let bytes: u32 = pages.lengths().iter().sum();
    format!(
        "a page every {} s: {} requests of {} bytes on {} kept connections, answers of {} to {} kB, {} kB in all",
        f64::from(pages.every_ms) / 1e3,
        pages.requests,
        pages.request,
        pages.streams,
        pages.smallest / 1_000,
        pages.largest / 1_000,
        bytes / 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::super::results::samples::settings;
    use super::*;
    use crate::load::congestion::CongestionControl;
    use crate::load::task::MAX_TASKS;

    #[test]
    fn every_flow_can_be_done_and_each_case_fits_one_measurement() {
        for flow in Flow::ALL {
            assert_eq!(flow.task(&settings()).problem(), None, "{}", flow.name());
            assert!(flow.alone().flows().contains(&flow) && flow.alone() != Case::AtOnce);
            assert!(Case::AtOnce.flows().contains(&flow));
        }
        assert!(Case::ALL.iter().all(|case| case.flows().len() <= MAX_TASKS));
    }

    #[test]
    fn the_congestion_control_is_that_of_all_connections() {
        let reno: CongestionControl = "reno".parse().unwrap();
        let settings = HomeSettings { congestion: reno, ..settings() };
        for flow in Flow::ALL {
            let found = match flow.task(&settings) {
                Task::Bulk(job) => job.congestion,
                Task::Pages(pages) => pages.sockets.congestion,
                _ => continue,
            };
            assert_eq!(found, reno, "{}", flow.name());
        }
    }

    #[test]
    fn what_is_under_way_ends_before_what_loads_the_path() {
        let at = |flow| Case::AtOnce.flows().iter().position(|one| *one == flow).unwrap();
        assert!(at(Flow::Pages) < at(Flow::Download) && at(Flow::VoiceUp) < at(Flow::Upload));
    }
}
