//! The conditions for two measurements to belong to one comparison: the same machine, programs and
//! settings.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ComparePlan;
use crate::experiment::environment::Environment;
use crate::experiment::outcome::Run;
use crate::observe::own_digest;
use crate::system::Programs;

/// The names of the parts that say what a round measures.
const SYSTEMS: &str = "systems (--vpn, --cipher)";
const CLIENTS: &str = "clients (--clients)";
/// The text between the values of these parts.
const BETWEEN_SYSTEMS: &str = "; ";
const BETWEEN_COUNTS: &str = ", ";

/// The identity of a comparison, each part a name with its value in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    parts: Vec<(String, String)>,
}

/// Results of now would not belong to those of before.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{aspect} is not what it was when the comparison began: {before} then, {now} now; start another comparison"
)]
pub struct Changed {
    pub aspect: String,
    pub before: String,
    pub now: String,
}

impl Identity {
    /// The identity of `plan` on the machine that `environment` describes.
    pub fn of(plan: &ComparePlan, environment: &Environment) -> Self {
        let traffic = &plan.traffic;
        let labels: Vec<String> = traffic.subjects.iter().map(|subject| subject.label()).collect();
        let counts: Vec<String> = traffic.clients.iter().map(u32::to_string).collect();
        let host = &environment.host;
        let mut parts: Vec<(String, String)> = [
            ("machine", format!("{} ({} × {})", host.name, host.cpus, host.cpu)),
            ("kernel", host.system.clone()),
            ("CPU flags", environment.cpu_flags.join(" ")),
            ("trafficspeed", format!("{} (SHA-256 {})", host.program, own_digest())),
            (SYSTEMS, labels.join(BETWEEN_SYSTEMS)),
            (CLIENTS, counts.join(BETWEEN_COUNTS)),
            // Whatever is added to these one day belongs to the identity without being named here.
            ("links", format!("{:?}", traffic.links)),
            // Their values on this machine: namespaces may not have the congestion control that
            // was asked for.
            ("links in words, with the VPNs' own TCP", environment.links.clone().unwrap_or_default()),
            ("programs", format!("{:?}", traffic.programs)),
            ("scripts (SHA-256)", scripts(&traffic.programs)),
            ("limits (--max-steal, --max-foreign, --attempts)", format!("{:?}", plan.limits)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let settings = serde_json::to_value(&traffic.settings).expect("settings have string keys");
        let settings = settings.as_object().expect("settings are a structure");
        parts.extend(settings.iter().map(|(name, value)| (format!("setting {name}"), value.to_string())));
        parts.extend(environment.sysctls.iter().cloned());
        Self { parts }
    }

    /// The number of measurements in a round: every system with every number of clients. `None` if
    /// another version named these parts otherwise. Systems of the user's own may share a label, so
    /// labels are counted as often as they are there; a number of clients that was given twice is
    /// measured once.
    pub fn measurements_per_round(&self) -> Option<usize> {
        let values = |part: &str| Some(&self.parts.iter().find(|(name, _)| name == part)?.1);
        let counts: BTreeSet<&str> = values(CLIENTS)?.split(BETWEEN_COUNTS).collect();
        Some(values(SYSTEMS)?.split(BETWEEN_SYSTEMS).count() * counts.len())
    }

    /// Makes sure that `now` is the same.
    ///
    /// # Errors
    /// [`Changed`], with the first difference.
    pub fn check(&self, now: &Self) -> Result<(), Changed> {
        let value = |identity: &Self, name: &str| {
            identity.parts.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
        };
        for (name, _) in self.parts.iter().chain(&now.parts) {
            let (before, now) = (value(self, name), value(now, name));
            if before != now {
                let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".into());
                return Err(Changed { aspect: name.clone(), before: text(before), now: text(now) });
            }
        }
        Ok(())
    }
}

/// Contents of the scripts of the user's own systems, which their paths do not show.
fn scripts(programs: &Programs) -> String {
    let digest = |path: &Path| -> String {
        match fs::read(path) {
            Ok(text) => Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect(),
            Err(error) => error.to_string(),
        }
    };
    let systems = programs.all_scripts().iter();
    let scripts = systems.flat_map(|system| std::iter::once(&system.up).chain(&system.down));
    let lines: Vec<String> = scripts.map(|path| format!("{} {}", path.display(), digest(path))).collect();
    lines.join(", ")
}

/// Makes sure that the system of `run` is the one that `earlier` runs measured: its version and its
/// executables.
pub fn check_system(earlier: &[Run], run: &Run) -> Result<(), Changed> {
    let before = earlier.iter().rev().find(|other| other.label == run.label && other.is_complete());
    let Some(before) = before.filter(|_| run.is_complete()) else { return Ok(()) };
    let differ = |aspect: &str, before: String, now: String| {
        if before == now {
            return Ok(());
        }
        Err(Changed { aspect: format!("the {aspect} of {}", run.label), before, now })
    };
    let digests = |run: &Run| {
        let digests = run.programs.iter().map(|program| format!("{} {}", program.role, program.sha256));
        digests.collect::<Vec<_>>().join(", ")
    };
    differ("cipher", before.facts.cipher.clone(), run.facts.cipher.clone())?;
    differ("version", before.facts.version.clone(), run.facts.version.clone())?;
    differ("executable (SHA-256)", digests(before), digests(run))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::quiet::Limits;
    use super::*;
    use crate::experiment::outcome::{Program, samples};
    use crate::experiment::traffic::TrafficPlan;
    use crate::lab::LinkSettings;
    use crate::lab::topology::Topology;
    use crate::system::command::Scripts;
    use crate::system::{Cipher, Kind, Subject};

    fn plan() -> ComparePlan {
        ComparePlan {
            traffic: TrafficPlan {
                subjects: Subject::all(&[Kind::Vpnd, Kind::None], &[Cipher::Auto], 0),
                clients: vec![2, 4],
                settings: samples::campaign().settings,
                links: LinkSettings::default(),
                programs: Programs::default(),
            },
            limits: Limits { steal_percent: 5.0, foreign_percent: 10.0, attempts: 3 },
            baseline: None,
        }
    }

    pub(in crate::experiment::compare) fn identity() -> Identity {
        Identity::of(&plan(), &Environment::default())
    }

    #[test]
    fn the_same_is_the_same_also_after_writing_and_reading() {
        let text = serde_json::to_string(&identity()).unwrap();
        assert_eq!(identity().check(&serde_json::from_str(&text).unwrap()), Ok(()));
    }

    #[test]
    fn every_change_of_machine_program_and_settings_is_named() {
        let environment = Environment::default;
        let with = |change: fn(&mut ComparePlan)| {
            let mut plan = plan();
            change(&mut plan);
            Identity::of(&plan, &environment())
        };
        let on = |change: fn(&mut Environment)| {
            let mut environment = environment();
            change(&mut environment);
            Identity::of(&plan(), &environment)
        };
        for (now, aspect) in [
            (with(|plan| plan.traffic.clients = vec![2, 8]), "clients (--clients)"),
            (with(|plan| plan.traffic.subjects.truncate(1)), "systems (--vpn, --cipher)"),
            (with(|plan| plan.traffic.links.mtu = 1400), "links"),
            (with(|plan| plan.traffic.links.topology = Topology::Routers), "links"),
            (with(|plan| plan.traffic.settings.seconds = 2.5), "setting seconds"),
            (with(|plan| plan.traffic.settings.repeats = 9), "setting repeats"),
            (
                with(|plan| plan.traffic.programs = Programs::default().with("vpnd", "other".into())),
                "programs",
            ),
            (with(|plan| plan.limits.attempts = 9), "limits (--max-steal, --max-foreign, --attempts)"),
            (on(|environment| environment.host.name = "b".into()), "machine"),
            (on(|environment| environment.host.system = "Linux 7".into()), "kernel"),
            (on(|environment| environment.host.program = "trafficspeed 9".into()), "trafficspeed"),
            (on(|environment| environment.cpu_flags = vec!["aes".into()]), "CPU flags"),
            (on(|environment| environment.sysctls = vec![("net.x".into(), "1".into())]), "net.x"),
            (
                on(|environment| environment.links = Some("VPNs over TCP have reno".into())),
                "links in words, with the VPNs' own TCP",
            ),
        ] {
            let changed = identity().check(&now).unwrap_err();
            assert_eq!(changed.aspect, aspect);
            assert_ne!(changed.before, changed.now);
        }
        let changed = identity().check(&with(|plan| plan.traffic.clients = vec![2, 8])).unwrap_err();
        assert!(changed.to_string().contains("2, 4 then, 2, 8 now"), "{changed}");
    }

    #[test]
    fn a_script_that_was_edited_on_the_way_is_noticed_by_what_it_holds() {
        let up = tempfile::NamedTempFile::new().unwrap();
        let down = tempfile::NamedTempFile::new().unwrap();
        let now = || {
            let (up, down) = (up.path().to_owned(), Some(down.path().to_owned()));
            let mut plan = plan();
            plan.traffic.programs =
                Programs::default().with_scripts(vec![Scripts { name: "mine".into(), up, down }]);
            Identity::of(&plan, &Environment::default())
        };
        let before = now();
        assert_eq!(before.check(&now()), Ok(()));
        for script in [&up, &down] {
            let before = now();
            fs::write(script.path(), "exit 0\n").unwrap();
            assert_eq!(before.check(&now()).unwrap_err().aspect, "scripts (SHA-256)");
        }
    }

    #[test]
    fn a_system_that_was_updated_or_rebuilt_on_the_way_is_refused() {
        let mut first = samples::run(Kind::Vpnd, 2, 1, 1_000);
        first.facts.version = "vpnd 1".into();
        first.programs = vec![Program { role: "gateway".into(), command: "a".into(), sha256: "aa".into() }];
        let mut next = first.clone();
        next.programs[0].command = "b".into();
        assert_eq!(check_system(&[first.clone()], &next), Ok(()), "temporary paths differ each time");
        next.programs[0].sha256 = "bb".into();
        let changed = check_system(&[first.clone()], &next).unwrap_err();
        assert!(changed.to_string().starts_with("the executable (SHA-256) of vpnd, aes-256-gcm is not what"));
        next.facts.version = "vpnd 2".into();
        assert!(check_system(&[first.clone()], &next).unwrap_err().aspect.starts_with("the version of vpnd"));
        assert_eq!(check_system(&[], &next), Ok(()));
        let mut other = first.clone();
        other.facts.cipher = "aes-256-gcm (ring)".into();
        assert!(check_system(&[first.clone()], &other).unwrap_err().aspect.starts_with("the cipher of vpnd"));
        next.error = Some("did not start".into());
        assert_eq!(check_system(&[first], &next), Ok(()), "who did not start said nothing of itself");
    }
}
