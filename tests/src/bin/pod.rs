//! What runs in the containers of the tests with real runtimes: answers whoever connects, until it is killed. With
//! `ask ADDRESS`, it connects to another and prints the answer; with `rest`, it does nothing until it is killed; with `hold NAME`, it has
//! the abstract name of a socket until then, and says so.
//!
//! The answer is the address that the server sees the client by, so that a packet that came another way is noticed.

#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixListener},
    },
    thread,
    time::Duration,
};

const PORT: u16 = 7007;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    match args.next().as_deref() {
        Some("ask") => ask(args.next().ok_or("ask whom?")?.parse()?)?,
        Some("rest") => rest(),
        Some("hold") => hold(&args.next().ok_or("hold what?")?)?,
        _ => serve()?,
    }
    Ok(())
}

fn serve() -> io::Result<()> {
    // Of both families.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))?;
    loop {
        let (mut client, from) = listener.accept()?;
        // One that has gone already is no reason to end.
        let _ = client.write_all(from.ip().to_canonical().to_string().as_bytes());
    }
}

fn hold(name: &str) -> io::Result<()> {
    let _name = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
    println!("{name}");
    rest()
}

fn rest() -> ! {
    loop {
        thread::park();
    }
}

fn ask(address: IpAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, PORT), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}
