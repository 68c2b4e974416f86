//! How a program is installed: the commands, as a person would type them.
//!
//! Nothing is hidden: what runs is what is shown.

use std::path::Path;

use clap::ValueEnum;

use super::Kind;
use super::program::{CACHE, Program, Source};

/// One command with its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Variables that are set for it.
    pub environment: Vec<(&'static str, String)>,
    /// Program and arguments.
    pub words: Vec<String>,
}

impl Step {
    fn new(words: &[&str]) -> Self {
        Self { environment: Vec::new(), words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.environment.push((name, value));
        self
    }

    /// The command as one would type it.
    pub fn line(&self) -> String {
        let settings = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        settings.chain(self.words.iter().cloned()).collect::<Vec<_>>().join(" ")
    }
}

/// The commands that install `program`, in order.
pub fn steps(program: &Program) -> Vec<Step> {
    match program.source {
        Source::Workspace { package } => vec![Step::new(&["cargo", "build", "--release", "-p", package])],
        Source::Debian { packages } => {
            vec![Step::new(&[&["apt-get", "install", "-y"], packages].concat())]
        }
        Source::Cargo { package, version } => {
            vec![Step::new(&["cargo", "install", "--locked", "--root", CACHE, "--version", version, package])]
        }
        Source::Go { module, version } => {
            // The program gets the name of its module, which two systems may share, so each has a
            // separate folder.
            let folder = Path::new(CACHE).join("go").join(program.name);
            let built = folder.join(module.rsplit('/').next().expect("a split has a part"));
            let target = Path::new(CACHE).join("bin").join(program.name);
            let (built, target) = (built.display().to_string(), target.display().to_string());
            vec![
                Step::new(&["go", "install", &format!("{module}@{version}")])
                    .with("GOBIN", folder.display().to_string()),
                Step::new(&["install", "-D", &built, &target]),
            ]
        }
    }
}

/// The one command that a person types to install `program`.
pub fn line(program: &Program) -> String {
    match program.source {
        Source::Workspace { .. } | Source::Debian { .. } => {
            steps(program).iter().map(Step::line).collect::<Vec<_>>().join(" && ")
        }
        Source::Cargo { .. } | Source::Go { .. } => {
            let owner = Kind::value_variants().iter().find(|kind| kind.profile().programs.contains(&program));
            let system = owner.map_or_else(|| program.name.to_owned(), |kind| kind.name());
            format!("trafficspeed doctor --install {system}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &'static str, source: Source) -> Vec<String> {
        steps(&Program { name, version: &[], places: &[], source }).iter().map(Step::line).collect()
    }

    #[test]
    fn each_source_has_its_commands() {
        assert_eq!(lines("x", Source::Debian { packages: &["a", "b"] }), ["apt-get install -y a b"]);
        assert_eq!(
            lines("x", Source::Cargo { package: "x-cli", version: "1.2.3" }),
            ["cargo install --locked --root /var/cache/trafficspeed --version 1.2.3 x-cli"]
        );
        assert_eq!(
            lines("fork", Source::Go { module: "example.org/a/tool", version: "v1" }),
            [
                "GOBIN=/var/cache/trafficspeed/go/fork go install example.org/a/tool@v1",
                "install -D /var/cache/trafficspeed/go/fork/tool /var/cache/trafficspeed/bin/fork",
            ]
        );
        assert_eq!(lines("x", Source::Workspace { package: "x" }), ["cargo build --release -p x"]);
    }
}
