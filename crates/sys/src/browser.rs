//! The process of a browser that one person's request opens and no person's rights reach: it runs
//! as a separate user, with its own name servers and home.
//!
//! INVARIANT: it has nothing of its caller's: no capability, no way to get one, no environment. It
//! ends with the thread that has started it, and what it has written is gone then: it reaches no
//! service that would start a process for its user or keep a job of it. It is the init of a PID
//! namespace, which no process that it starts can leave, so that the kernel kills them all with it.
//! Its own mounts alone name other name servers.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use crate::account::UnixUser;

/// Where the C library reads which name servers there are.
const RESOLV_CONF: &CStr = c"/etc/resolv.conf";
/// Directories in whose place the browser finds empty ones: services that start something for a
/// user (logind, by D-Bus, a user manager that stays), jobs that run later, and resolvers of this
/// machine that the C library prefers to that file. Whole directories, since a socket may be made
/// again.
const HIDDEN: [&CStr; 6] =
    [c"/run/dbus", c"/run/systemd", c"/run/user", c"/run/nscd", c"/var/spool/cron", c"/var/spool/at"];
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

/// The command of such a browser, to be spawned in [`start`]: the file `resolv_conf` names its name
/// servers, and the empty directory `home` is where it finds an empty file system for itself.
///
/// # Errors
/// If a path can't be written as the kernel reads it.
pub fn command(program: &Path, user: &UnixUser, resolv_conf: &Path, home: &Path) -> io::Result<Command> {
    let user = user.clone();
    let options = format!("mode=0700,uid={},gid={},size={HOME_SIZE}", user.uid(), user.gid());
    let mut mounts = Vec::from(Mount::processes());
    mounts.push(Mount::empty(terminated(home)?, CString::new(options)?));
    let hidden = HIDDEN.into_iter().filter(|directory| path_of(directory).exists());
    let empty = |directory: &CStr| Mount::empty(directory.to_owned(), c"mode=0755,size=64k".to_owned());
    mounts.extend(hidden.map(empty));
    let place = hidden_place()?;
    let name_servers = Mount::over(terminated(resolv_conf)?, RESOLV_CONF);
    let home = terminated(home)?;
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let steps = move || {
        leave_mounts()?;
        mounts.iter().try_for_each(Mount::make)?;
        make_place(&place)?;
        name_servers.make()?;
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

/// Spawns such a browser as the init of a new PID namespace: once its end is reported, no process
/// that it has started is left.
///
/// # Errors
/// If the namespace can't be made, or the browser can't be started.
pub fn start<T>(spawn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let outer = fs::File::open("/proc/thread-self/ns/pid")?;
    // SAFETY: it decides in which namespace this thread's next children are; no memory is passed.
    succeeded(unsafe { libc::unshare(libc::CLONE_NEWPID) }).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("a PID namespace can't be made (user.max_pid_namespaces): {error}"),
        )
    })?;
    let started = spawn();
    // SAFETY: as above, and the descriptor is open.
    if succeeded(unsafe { libc::setns(outer.as_raw_fd(), libc::CLONE_NEWPID) }).is_err() {
        // This thread could start neither threads nor processes any more.
        std::process::abort();
    }
    started
}

/// Kills all processes of a user that is for such browsers alone. Those of a browser can't stop or
/// kill the process that does so: it is outside their PID namespace.
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

/// The file to which the name servers' leads, if that is hidden, and before it the directories that
/// are hidden with it.
fn hidden_place() -> io::Result<Vec<CString>> {
    // Without it the mount in its place fails.
    let Ok(file) = fs::canonicalize(path_of(RESOLV_CONF)) else { return Ok(Vec::new()) };
    let mut hidden = HIDDEN.into_iter().map(path_of);
    let Some(root) = hidden.find(|root| file.starts_with(root)) else { return Ok(Vec::new()) };
    let mut place: Vec<&Path> = file.ancestors().take_while(|path| *path != root).collect();
    place.reverse();
    place.into_iter().map(terminated).collect()
}

/// Makes that file again, for a mount in its place, with its directories.
fn make_place(place: &[CString]) -> io::Result<()> {
    let Some((file, directories)) = place.split_last() else { return Ok(()) };
    for directory in directories {
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::mkdir(directory.as_c_str(), mode)?;
        // The service's umask does not count: another user goes through.
        rustix::fs::chmod(directory.as_c_str(), mode)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(file.as_c_str(), flags, Mode::RUSR)?;
    Ok(())
}

impl Mount {
    /// The processes of the PID namespace in place of the machine's, and the kernel's settings,
    /// read-only as they are for the service.
    fn processes() -> [Self; 3] {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let (source, target) = (c"proc".to_owned(), c"/proc".to_owned());
        let processes = Self { kind: source.clone(), source, target, flags, options: CString::default() };
        let settings = Self::over(c"/proc/sys".to_owned(), c"/proc/sys");
        let mut read_only = Self::over(c"/proc/sys".to_owned(), c"/proc/sys");
        read_only.flags |= flags | libc::MS_REMOUNT | libc::MS_RDONLY;
        [processes, settings, read_only]
    }

    /// An empty file system.
    fn empty(target: CString, options: CString) -> Self {
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        Self { source: c"browser".to_owned(), target, kind: c"tmpfs".to_owned(), flags, options }
    }

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

fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

fn terminated(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
