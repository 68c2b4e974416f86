//! The user's choices for any suite, from which each suite makes its stages and cases.

use super::{Case, Quantity, Stage, SuitePlan};
use crate::experiment::pair_run::Times;
use crate::experiment::testbed::RemoteEnd;
use crate::lab::LinkSettings;
use crate::load::task::Task;
use crate::system::vpnd::Code;
use crate::system::{Cipher, Kind, Priority, Programs, Subject};

/// The user's choices for any suite.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// The systems besides plain routing.
    pub kinds: Vec<Kind>,
    pub ciphers: Vec<Cipher>,
    /// The CPU priorities of the systems that take one.
    pub priorities: Vec<Priority>,
    /// Times of each measurement.
    pub times: Times,
    pub repeats: u32,
    pub links: LinkSettings,
    /// Where the far end is.
    pub far: RemoteEnd,
    pub programs: Programs,
    /// Measure one system a second time, as its own control.
    pub control: bool,
}

impl SuiteOptions {
    /// Each system with those of the ciphers that it has, or with its own choice if it has none;
    /// and with each of the priorities that it may take.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let subjects_of = |&kind: &Kind| {
            let has = |cipher: &&Cipher| kind == Kind::Vpnd || kind.profile().ciphers.contains(cipher);
            let mut subjects: Vec<Subject> =
                self.ciphers.iter().filter(has).map(|cipher| Subject::new(kind, *cipher)).collect();
            if subjects.is_empty() && !self.ciphers.is_empty() {
                subjects.push(Subject::new(kind, Cipher::Auto));
            }
            subjects
        };
        let subjects: Vec<Subject> = self.kinds.iter().flat_map(subjects_of).collect();
        Subject::with_priorities(&subjects, &self.priorities)
    }

    /// Plain routing, and each system with its ciphers.
    pub(super) fn plain_and_subjects(&self) -> Vec<Subject> {
        let plain = Subject::new(Kind::None, Cipher::None);
        std::iter::once(plain).chain(self.subjects()).collect()
    }

    pub(super) fn stage(&self, subject: Subject, cases: Vec<Case>) -> Stage {
        let among_others = self.kinds.iter().any(|kind| !matches!(kind, Kind::Vpnd | Kind::None));
        Stage { subject, code: Code::Native, links: self.links, among_others, cases }
    }

    pub(super) fn case(
        &self,
        section: &str,
        name: String,
        mut task: Task,
        ip: u8,
        quantities: &[Quantity],
    ) -> Case {
        task.set_congestion(self.links.congestion);
        Case {
            section: section.to_owned(),
            name,
            task,
            ip,
            quantities: quantities.to_vec(),
            hogs: 0,
            search: None,
            times: self.times,
        }
    }

    pub(super) fn plan(&self, name: &'static str, about: String, stages: Vec<Stage>) -> SuitePlan {
        let (far, repeats, programs) = (self.far, self.repeats, self.programs.clone());
        SuitePlan { name, about, far, stages, repeats, await_load: false, programs }
    }
}

#[cfg(test)]
pub(super) fn sample(control: bool) -> SuiteOptions {
    let second = std::time::Duration::from_secs(1);
    SuiteOptions {
        kinds: vec![Kind::Vpnd],
        ciphers: vec![Cipher::Auto],
        priorities: vec![Priority::Own],
        times: Times { warmup: second, duration: second, interval: second },
        repeats: 5,
        links: LinkSettings::default(),
        far: RemoteEnd::Gateway,
        programs: Programs::default(),
        control,
    }
}
