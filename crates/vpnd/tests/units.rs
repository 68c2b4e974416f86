//! What `config/` offers for installation fits this program and this kernel: the commands of the systemd units are
//! commands of `vpnd`, the kernel settings exist.

use std::fs;
use std::path::Path;

use clap::Parser;
use vpnd::cli::Cli;

fn lines(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let trimmed = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    trimmed.map(str::to_owned).collect()
}

#[test]
fn the_units_run_commands_that_exist() {
    for (unit, least) in [("vpnd.service", 3), ("vpnd-connect@.service", 2)] {
        let all = lines(unit);
        let commands: Vec<_> = all
            .iter()
            .filter_map(|line| line.split_once('='))
            .filter(|(key, _)| key.starts_with("Exec"))
            .map(|(_, command)| command.replace("%i", "campus"))
            .collect();
        assert!(commands.len() >= least, "{unit} runs {commands:?}");
        for command in commands {
            assert!(command.starts_with("/usr/local/bin/vpnd "), "{unit}: {command}");
            if let Err(error) = Cli::try_parse_from(command.split(' ')) {
                panic!("{unit}: {command}\n{error}");
            }
        }
    }
}

#[test]
fn the_kernel_knows_the_settings() {
    for line in lines("90-vpnd.conf") {
        let (key, value) = line.split_once(" = ").expect("KEY = VALUE");
        assert!(value.parse::<u64>().is_ok(), "{line}");
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        assert!(path.exists(), "this kernel has no {key}");
    }
}
