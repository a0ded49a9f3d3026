//! Program in the containers of tests with real runtimes. Without arguments, an echo server that runs until
//! killed; `ask ADDRESS` connects to a server and prints its answer; `rest` sleeps until killed; `hold NAME`
//! binds an abstract socket until killed, and prints a line once bound; `fill NAME` also fills its queue.
//!
//! The server answers with the client's address as it sees it, which reveals NAT and wrong paths.

#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream},
    },
    thread,
    time::Duration,
};

use nix::sys::socket::{Backlog, listen};

const PORT: u16 = 7007;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    match args.next().as_deref() {
        Some("ask") => ask(args.next().ok_or("`ask` needs an address")?.parse()?)?,
        Some("rest") => rest(),
        Some("hold") => hold(&args.next().ok_or("`hold` needs a name")?, false)?,
        Some("fill") => hold(&args.next().ok_or("`fill` needs a name")?, true)?,
        _ => serve()?,
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    // Dual-stack.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
    loop {
        let (mut client, from) = listener.accept()?;
        // The client may have disconnected already.
        let _ = client.write_all(from.ip().to_canonical().to_string().as_bytes());
    }
}

fn hold(name: &str, fills: bool) -> io::Result<()> {
    let address = UnixAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    if fills {
        // A queue for one connection, which keeps its place after its end.
        listen(&listener, Backlog::new(0)?)?;
        UnixStream::connect_addr(&address)?;
    }
    println!("{name}");
    rest()
}

fn rest() -> ! {
    loop {
        thread::park();
    }
}

fn ask(address: IpAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, PORT), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}
