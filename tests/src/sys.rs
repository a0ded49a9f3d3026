//! Namespaces, mounts and child processes.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::process::CommandExt as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    errno::Errno,
    libc,
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    sys::signal::Signal,
};

/// Moves the calling thread, and its future children, into new network and mount namespaces.
///
/// # Errors
/// If the caller is not root.
pub fn leave_host() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("cannot create network and mount namespaces; root is required")?;
    // From here on, mounts do not propagate to the host.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("cannot make mounts private")
}

/// Mounts a file system that is visible in this mount namespace only.
///
/// # Errors
/// If the kernel refuses.
pub fn mount_private(kind: &str, at: &str) -> anyhow::Result<()> {
    mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount a {kind} at {at}"))
}

/// Mounts an overlay over a directory: writes go to `changes` and are visible in this mount namespace only.
///
/// # Errors
/// If the kernel refuses.
pub fn mount_overlay(directory: &str, changes: &str) -> anyhow::Result<()> {
    let (upper, work) = (format!("{changes}/upper"), format!("{changes}/work"));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&work)?;
    let options = format!("lowerdir={directory},upperdir={upper},workdir={work}");
    mount(Some("overlay"), directory, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("cannot mount an overlay over {directory}"))
}

/// Mounts a file system that is visible in this mount namespace only, around a mount point below it, which
/// stays where it is and shared with other mount namespaces.
///
/// # Errors
/// If the kernel refuses.
pub fn mount_around(kind: &str, at: &str, kept: &str) -> anyhow::Result<()> {
    // The old mount can be named by its descriptor only, once the new one hides it.
    let old = File::open(kept).with_context(|| format!("cannot open {kept}"))?;
    mount_private(kind, at)?;
    fs::create_dir_all(kept)?;
    let old = format!("/proc/self/fd/{}", old.as_raw_fd());
    mount(Some(old.as_str()), kept, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot mount {kept} again"))
}

/// Shares mounts below a mount point between this mount namespace and its future copies.
///
/// # Errors
/// If `at` is not a mount point.
pub fn share_mounts(at: &str) -> anyhow::Result<()> {
    mount(None::<&str>, at, None::<&str>, MsFlags::MS_SHARED, None::<&str>)
        .with_context(|| format!("cannot share the mounts below {at}"))
}

/// Creates a network namespace, bind-mounted at a path.
///
/// # Errors
/// If the kernel refuses.
pub fn make_netns(path: &Path) -> anyhow::Result<()> {
    File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let bind = || -> anyhow::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(())
    };
    // On a temporary thread, so that the caller stays in its own namespace.
    thread::scope(|scope| scope.spawn(bind).join())
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?
        .with_context(|| format!("cannot create the network namespace {}", path.display()))
}

/// Runs a closure in a network namespace, on a thread of its own.
///
/// # Errors
/// If the namespace cannot be entered, or the closure fails.
pub fn in_netns<T: Send>(path: &Path, run: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let inside = || {
        let netns = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        setns(netns, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", path.display()))?;
        run()
    };
    match thread::scope(|scope| scope.spawn(inside).join()) {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Binds a socket to an address in a network namespace; retries while the address is in use. The previous
/// socket may be closed but still held: a child that another test is starting inherits all descriptors until
/// it calls exec.
///
/// # Errors
/// If the namespace cannot be entered, or the address stays in use.
pub fn bind_in<T: Send>(
    netns: &Path,
    address: SocketAddr,
    mut bind: impl FnMut(SocketAddr) -> io::Result<T> + Send,
) -> anyhow::Result<T> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    in_netns(netns, move || {
        loop {
            match bind(address) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < TIMEOUT => {
                    thread::sleep(PAUSE);
                }
                bound => return bound.with_context(|| format!("cannot bind to {address}")),
            }
        }
    })
}

/// A command that enters a network namespace.
///
/// # Errors
/// If the namespace cannot be opened.
pub fn command_in(netns: &Path, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
    let netns = File::open(netns).with_context(|| format!("cannot open {}", netns.display()))?;
    let mut command = Command::new(program);
    enter(&mut command, netns, CloneFlags::CLONE_NEWNET);
    Ok(command)
}

/// Makes a command's process enter a namespace before exec.
pub fn enter(command: &mut Command, namespace: File, kind: CloneFlags) {
    let enter = move || setns(&namespace, kind).map_err(io::Error::from);
    #[expect(unsafe_code, reason = "a child enters its namespace between fork and exec")]
    // SAFETY: setns is a plain system call, which may be made there.
    unsafe {
        command.pre_exec(enter)
    };
}

/// Starts a command as the first process of a new PID namespace, with a copy of this mount namespace and a
/// matching `/proc`.
///
/// # Errors
/// If the kernel refuses.
pub fn spawn_in_new_pids(command: &mut Command) -> anyhow::Result<Child> {
    let own = own_pids()?;
    let own_proc = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        Ok(mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)?)
    };
    #[expect(unsafe_code, reason = "a child makes its namespace between fork and exec")]
    // SAFETY: unshare and mount are plain system calls, which may be made there, and short paths are not
    // allocated.
    unsafe {
        command.pre_exec(own_proc)
    };
    unshare(CloneFlags::CLONE_NEWPID)?;
    let started = command.spawn();
    setns(own, CloneFlags::CLONE_NEWPID)?;
    Ok(started?)
}

/// Runs a closure whose child processes start in a PID namespace. The closure must not start threads.
///
/// # Errors
/// If the namespace has ended.
pub fn with_children_in<T>(pids: &File, run: impl FnOnce() -> T) -> anyhow::Result<T> {
    let own = own_pids()?;
    setns(pids, CloneFlags::CLONE_NEWPID).context("cannot enter the PID namespace")?;
    let result = run();
    setns(own, CloneFlags::CLONE_NEWPID)?;
    Ok(result)
}

fn own_pids() -> anyhow::Result<File> {
    Ok(File::open("/proc/thread-self/ns/pid")?)
}

/// Makes a command's process die with the thread that starts it.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let die = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    #[expect(unsafe_code, reason = "a child asks for its own end between fork and exec")]
    // SAFETY: prctl is a plain system call, which may be made there.
    unsafe {
        command.pre_exec(die)
    }
}

/// Runs a command to completion and returns its standard output.
///
/// # Errors
/// If the command cannot be started or fails; the error carries its output.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } = die_with_parent(command)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    ensure!(status.success(), "{command:?} failed, {status}:\n{stdout}{}", String::from_utf8_lossy(&stderr));
    Ok(stdout)
}

/// Runs a command line, split at whitespace, and returns its standard output.
///
/// # Errors
/// If the command cannot be started or fails.
pub fn run(line: &str) -> anyhow::Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("the command line is empty")?;
    output(Command::new(program).args(words))
}

/// The names of a directory's entries.
///
/// # Errors
/// If the directory cannot be listed.
pub fn file_names(directory: &str) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {directory}"))?;
    Ok(entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned()).collect())
}

/// Polls a condition every 5 ms until it is true. In an emulator, in which the kernel takes seconds to verify
/// the programs of an agent, `FERRULE_PATIENCE=N` multiplies the limit.
///
/// # Errors
/// If the condition is not true within `limit`; includes the condition's last error.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let limit = limit.saturating_mul(patience());
    loop {
        let last = is_so();
        match last {
            Ok(true) => return Ok(()),
            _ if start.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            Ok(false) => bail!("{what}: not within {limit:?}"),
            Err(error) => return Err(error.context(format!("{what}: not within {limit:?}"))),
        }
    }
}

fn patience() -> u32 {
    let set = std::env::var("FERRULE_PATIENCE").ok();
    set.and_then(|it| it.parse().ok()).unwrap_or(1)
}

/// Gives what an IPv4 socket sends from now on an option that means nothing.
///
/// # Errors
/// If the kernel refuses the option.
pub fn add_options(socket: &impl AsRawFd) -> anyhow::Result<()> {
    // Three times "no operation" and the end (RFC 791, 3.1).
    const OPTIONS: [u8; 4] = [1, 1, 1, 0];
    #[expect(unsafe_code, reason = "nix does not know the option")]
    // SAFETY: the kernel reads the value, which has the given size.
    let set = unsafe {
        let len = OPTIONS.len() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_OPTIONS, OPTIONS.as_ptr().cast(), len)
    };
    Errno::result(set).map(drop).context("cannot set options")
}
