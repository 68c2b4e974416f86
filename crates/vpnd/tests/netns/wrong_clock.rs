//! A machine of a lab whose clock is wrong: what its programs ask the system's clock for has some
//! seconds added, which may change while they run.
//!
//! A library that the dynamic loader puts before all others (ld.so.preload) does that. Each program
//! maps the file with the seconds when it starts, before it gives up its privileges.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::gateway::must;
use crate::lab::Lab;
use crate::namespace::Namespace;
use crate::process;

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *added;
static int (*ask)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    int file = open(ADDED, O_RDONLY);
    void *page = mmap(0, sizeof *added, PROT_READ, MAP_SHARED, file, 0);
    added = page == MAP_FAILED ? 0 : page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!ask) ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = ask(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && added) time->tv_sec += *added;
    return result;
}
"#;

/// The clock of one machine.
pub(crate) struct WrongClock(PathBuf);

impl WrongClock {
    /// Programs of `machine` that start from now on have a clock that is these seconds ahead.
    pub(crate) fn of(lab: &Lab, machine: &Namespace, ahead_s: i64) -> Self {
        let [added, source, library] = ["added", "clock.c", "clock.so"].map(|name| lab.path(name));
        fs::set_permissions(lab.path(""), fs::Permissions::from_mode(0o711)).unwrap();
        let clock = Self(added);
        clock.set(ahead_s);
        fs::write(&source, LIBRARY).unwrap();
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        command.arg(format!("-DADDED=\"{}\"", clock.0.display()));
        must(process::run(command));
        fs::write(process::etc(lab, machine).join("ld.so.preload"), format!("{}\n", library.display()))
            .unwrap();
        clock
    }

    /// Changes the clock of programs that run.
    pub(crate) fn set(&self, ahead_s: i64) {
        // It is never shorter than what programs have mapped.
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&self.0).unwrap();
        file.write_all(&ahead_s.to_ne_bytes()).unwrap();
    }
}
