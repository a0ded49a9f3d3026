//! Namespaces, mounts and child processes.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    sys::signal::Signal,
};

/// Gives the calling thread, and all that it starts from now on, a network and a mount namespace of its own.
///
/// # Errors
/// If the caller is not root.
pub fn leave_host() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("cannot leave the host's namespaces: not root?")?;
    // From here on, no mount of ours is seen by anyone else.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("cannot make mounts private")
}

/// Mounts a file system that exists in this mount namespace only.
///
/// # Errors
/// If the kernel refuses.
pub fn mount_private(kind: &str, at: &str) -> anyhow::Result<()> {
    mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount a {kind} at {at}"))
}

/// Lets what is written below a directory, from now on, go to another one and be seen in this mount namespace only.
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

/// Lets mounts below a mount point be seen in copies of this mount namespace, and theirs here.
///
/// # Errors
/// If it is no mount point.
pub fn share_mounts(at: &str) -> anyhow::Result<()> {
    mount(None::<&str>, at, None::<&str>, MsFlags::MS_SHARED, None::<&str>)
        .with_context(|| format!("cannot share the mounts below {at}"))
}

/// Makes a network namespace that a path leads to.
///
/// # Errors
/// If the kernel refuses.
pub fn make_netns(path: &Path) -> anyhow::Result<()> {
    File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let bind = || -> anyhow::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(())
    };
    // On a thread that ends with it, so that nobody has to come back.
    thread::scope(|scope| scope.spawn(bind).join())
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?
        .with_context(|| format!("cannot make the network namespace {}", path.display()))
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

/// Binds a socket to an address in a network namespace, as soon as nobody has it. Whoever had it may have closed it: a
/// child that another test of this process starts holds copies of all its descriptors until it executes its program.
///
/// # Errors
/// If the namespace cannot be entered, or the address is not to be had.
pub fn bind_in<T: Send>(
    netns: &Path,
    address: SocketAddr,
    mut bind: impl FnMut(SocketAddr) -> io::Result<T> + Send,
) -> anyhow::Result<T> {
    const PATIENCE: Duration = Duration::from_secs(5);
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    in_netns(netns, move || {
        loop {
            match bind(address) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < PATIENCE => {
                    thread::sleep(PAUSE);
                }
                bound => return bound.with_context(|| format!("cannot bind to {address}")),
            }
        }
    })
}

/// A command that will run in a network namespace.
///
/// # Errors
/// If the namespace cannot be opened.
pub fn command_in(netns: &Path, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
    let netns = File::open(netns).with_context(|| format!("cannot open {}", netns.display()))?;
    let mut command = Command::new(program);
    enter(&mut command, netns, CloneFlags::CLONE_NEWNET);
    Ok(command)
}

/// Lets a command's process enter a namespace before it starts.
pub fn enter(command: &mut Command, namespace: File, kind: CloneFlags) {
    let enter = move || setns(&namespace, kind).map_err(io::Error::from);
    #[expect(unsafe_code, reason = "a child enters its namespace between fork and exec")]
    // SAFETY: setns is a plain system call, which may be made there.
    unsafe {
        command.pre_exec(enter)
    };
}

/// Starts a command as the first process of a PID namespace, with a copy of this mount namespace that has its `/proc`.
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
    // SAFETY: unshare and mount are plain system calls, which may be made there, and short paths are not allocated.
    unsafe {
        command.pre_exec(own_proc)
    };
    unshare(CloneFlags::CLONE_NEWPID)?;
    let started = command.spawn();
    setns(own, CloneFlags::CLONE_NEWPID)?;
    Ok(started?)
}

/// Lets the processes that a closure starts be of a PID namespace. It cannot start threads meanwhile.
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

/// Lets a command's process die with the thread that starts it.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let die = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    #[expect(unsafe_code, reason = "a child asks for its own end between fork and exec")]
    // SAFETY: prctl is a plain system call, which may be made there.
    unsafe {
        command.pre_exec(die)
    }
}

/// Runs a command to its end and gives what it printed.
///
/// # Errors
/// If it cannot be started or fails; what it printed is in the error.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let Output { status, stdout, stderr } = die_with_parent(command)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    ensure!(status.success(), "{command:?} failed, {status}:\n{stdout}{}", String::from_utf8_lossy(&stderr));
    Ok(stdout)
}

/// Runs a command line without quoting to its end and gives what it printed.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(line: &str) -> anyhow::Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command line")?;
    output(Command::new(program).args(words))
}

/// Waits until something is so.
///
/// # Errors
/// If it is not so within the time, with what was last missing.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let start = Instant::now();
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
