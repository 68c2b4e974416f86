//! The process of a browser that one person's request opens and no person's rights reach: it runs
//! as a separate user, with its own name servers and home.
//!
//! INVARIANT: it has nothing of its caller's: no capability, no way to get one, no environment. It
//! ends with the thread that has started it, and what it has written is gone then. That other name
//! servers are asked is so in its own mounts alone.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;

use rustix::process::Signal;

use crate::account::UnixUser;

/// Where the C library reads which name servers there are.
const RESOLV_CONF: &CStr = c"/etc/resolv.conf";
/// The ways to resolvers of this machine that the C library prefers to that file.
const RESOLVERS: [&CStr; 2] = [c"/run/systemd/resolve/io.systemd.Resolve", c"/run/nscd/socket"];
/// Bytes that it may write.
const HOME_SIZE: &str = "256m";

/// A call to `mount(2)`, with all its words.
struct Mount {
    source: CString,
    target: CString,
    kind: CString,
    flags: libc::c_ulong,
    options: CString,
}

/// The command of such a browser: the file `resolv_conf` names its name servers, and the empty
/// directory `home` is where it finds an empty file system for itself.
///
/// # Errors
/// If a path can't be written as the kernel reads it.
pub fn command(program: &Path, user: &UnixUser, resolv_conf: &Path, home: &Path) -> io::Result<Command> {
    let user = user.clone();
    let options = format!("mode=0700,uid={},gid={},size={HOME_SIZE}", user.uid(), user.gid());
    let mut mounts = vec![
        Mount {
            source: c"browser".to_owned(),
            target: terminated(home)?,
            kind: c"tmpfs".to_owned(),
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            options: CString::new(options)?,
        },
        Mount::over(terminated(resolv_conf)?, RESOLV_CONF),
    ];
    let is_there = |path: &&CStr| Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).exists();
    let resolvers = RESOLVERS.into_iter().filter(is_there);
    mounts.extend(resolvers.map(|socket| Mount::over(c"/dev/null".to_owned(), socket)));
    let home = terminated(home)?;
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let steps = move || {
        leave_mounts()?;
        mounts.iter().try_for_each(Mount::make)?;
        user.assume()?;
        rustix::thread::set_no_new_privs(true)?;
        // A change of user resets it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // SAFETY: the path ends with a zero, and is only read.
        succeeded(unsafe { libc::chdir(home.as_ptr()) })
    };
    // SAFETY: between fork and exec the closure makes system calls alone, with words that were made
    // before: it neither allocates nor takes a lock.
    unsafe { command.pre_exec(steps) };
    Ok(command)
}

/// Kills all processes of a user that is for such browsers alone.
///
/// # Errors
/// If that user can't be become.
pub fn end_all(user: &UnixUser) -> io::Result<()> {
    let user = user.clone();
    let mut killer = Command::new("/proc/self/exe");
    let steps = move || {
        user.assume()?;
        // Its failure is that there is none.
        // SAFETY: a signal is sent to those that this user may send one to, and to no memory.
        let _ = unsafe { libc::kill(-1, libc::SIGKILL) };
        Err(io::Error::from_raw_os_error(libc::ECANCELED))
    };
    // SAFETY: as above.
    unsafe { killer.pre_exec(steps) };
    match killer.spawn() {
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("no process of the browser's user was killed")),
    }
}

/// Gives this process its own copy of the mounts that it shares with others.
fn leave_mounts() -> io::Result<()> {
    // SAFETY: the process has one thread here, and no memory is passed.
    succeeded(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the words end with a zero, and the kernel only reads them; it takes no others here.
    succeeded(unsafe { libc::mount(c"none".as_ptr(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) })
}

impl Mount {
    /// Binds a file over another.
    fn over(source: CString, target: &CStr) -> Self {
        let (target, empty) = (target.to_owned(), CString::default());
        Self { source, target, kind: empty.clone(), flags: libc::MS_BIND, options: empty }
    }

    fn make(&self) -> io::Result<()> {
        let Self { source, target, kind, flags, options } = self;
        // SAFETY: the words end with a zero, and the kernel only reads them.
        succeeded(unsafe {
            libc::mount(
                source.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                *flags,
                options.as_ptr().cast::<libc::c_void>(),
            )
        })
    }
}

fn succeeded(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn terminated(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
