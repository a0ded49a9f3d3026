//! The test API server as a program that runs until a signal ends it.

#![forbid(unsafe_code)]

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use ferrule_tests::apiserver::{ApiServer, Options};
use nix::sys::signal::{SigSet, Signal};

/// An API server for tests. Its switches are under `/_test/`.
#[derive(Debug, Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// A bearer token to accept; repeatable. Without one, requests need no token.
    #[arg(long)]
    token: Vec<String>,
    /// Writes a kubeconfig file with the first token.
    #[arg(long)]
    kubeconfig_out: Option<PathBuf>,
    /// Rejects `sendInitialEvents`.
    #[arg(long)]
    no_watch_list: bool,
    /// Leaves out the KuryrPort resource.
    #[arg(long)]
    no_kuryr: bool,
    /// Installs the ClusterNetworkPolicy resource.
    #[arg(long)]
    cluster_policies: bool,
    /// Interval of bookmarks, in seconds.
    #[arg(long, default_value_t = 60)]
    bookmark_interval: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // Blocked before other threads start, so that none of them receives the signal.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.thread_block()?;

    let server = ApiServer::start(Options {
        listen: args.listen,
        tokens: (!args.token.is_empty()).then(|| args.token.clone()),
        kuryr: !args.no_kuryr,
        cluster_policies: args.cluster_policies,
        watch_list: !args.no_watch_list,
        bookmark_interval: Duration::from_secs(args.bookmark_interval),
        ..Options::default()
    })?;
    if let Some(path) = &args.kubeconfig_out {
        server.kubeconfig(path, args.token.first().map(String::as_str))?;
    }
    println!("{}", server.url());
    ends.wait()?;
    server.stop();
    Ok(())
}
