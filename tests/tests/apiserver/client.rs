//! A minimal HTTP client, and servers for it.

use std::{
    io::{self, BufRead, BufReader, Read, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use ferrule_tests::apiserver::{ApiServer, Garbage, Options, Resource::Pods, Switch, Which, objects};
use serde_json::Value;

pub const PODS: &str = "/api/v1/namespaces/shop/pods";
pub const ALL: Which = Which { resource: None, count: None };

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// A watch response, read line by line.
pub struct Watch(pub BufReader<Chunks>);

/// Decoder of a chunked body.
pub struct Chunks {
    stream: BufReader<TcpStream>,
    left: usize,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn version(&self) -> u64 {
        self.json()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    pub fn names(&self) -> Vec<String> {
        let list = self.json();
        list["items"].as_array().unwrap().iter().map(|item| text(&item["metadata"]["name"])).collect()
    }
}

impl Watch {
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        Ok(String::from_utf8(line).unwrap())
    }

    pub fn event(&mut self) -> Value {
        let line = self.line().unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Type, name and version of the next event.
    pub fn next(&mut self) -> (String, String, u64) {
        let event = self.event();
        let metadata = &event["object"]["metadata"];
        (text(&event["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"]).parse().unwrap())
    }

    pub fn next_type(&mut self) -> String {
        text(&self.event()["type"])
    }

    /// Whether the watch sends nothing before a fence: a line of an invented type on all open watches.
    pub fn is_silent(&mut self, server: &ApiServer) -> bool {
        server.switch(Switch::SendGarbage { garbage: Garbage::UnknownType, which: ALL });
        self.next_type() == "RENAMED"
    }

    /// Whether a stalled watch, which no fence can pass, sends nothing for a while.
    pub fn is_stalled(&mut self) -> bool {
        self.0.get_ref().stream.get_ref().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let silent = self.line().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.0.get_ref().stream.get_ref().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        silent
    }

    pub fn has_ended_cleanly(&mut self) -> bool {
        self.line().is_ok_and(|line| line.is_empty())
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut size = String::new();
            self.stream.read_line(&mut size)?;
            if size.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.left = usize::from_str_radix(size.trim(), 16).unwrap();
            if self.left == 0 {
                return Ok(0);
            }
        }
        let end = buffer.len().min(self.left);
        let count = self.stream.read(&mut buffer[..end])?;
        self.left -= count;
        if self.left == 0 {
            self.stream.read_exact(&mut [0; 2])?;
        } else if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(count)
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn send(server: SocketAddr, method: &str, target: &str, headers: &str, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let target = target.replace(' ', "%20");
    let length = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: test\r\nUser-Agent: test/1\r\n{headers}");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
    BufReader::new(stream)
}

fn read_head(stream: &mut BufReader<TcpStream>) -> (u16, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "the connection was closed: {head:?}");
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head)
}

pub fn request_with(server: &ApiServer, method: &str, target: &str, headers: &str, body: &str) -> Reply {
    let headers = format!("Connection: close\r\n{headers}");
    let mut stream = send(server.address(), method, target, &headers, body);
    let (status, head) = read_head(&mut stream);
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    Reply { status, head, body }
}

pub fn get(server: &ApiServer, target: &str) -> Reply {
    request_with(server, "GET", target, "", "")
}

pub fn request(server: &ApiServer, method: &str, target: &str, body: &Value) -> Reply {
    request_with(server, method, target, "Content-Type: application/json\r\n", &body.to_string())
}

pub fn patch(server: &ApiServer, kind: &str, target: &str, body: &Value) -> Reply {
    let headers = format!("Content-Type: application/{kind}\r\n");
    request_with(server, "PATCH", target, &headers, &body.to_string())
}

pub fn watch(server: &ApiServer, target: &str, query: &str) -> Watch {
    let mut stream = send(server.address(), "GET", &format!("{target}?watch=true&{query}"), "", "");
    let (status, head) = read_head(&mut stream);
    assert_eq!(status, 200, "{head}");
    Watch(BufReader::new(Chunks { stream, left: 0 }))
}

pub fn start() -> ApiServer {
    ApiServer::start(Options::default()).unwrap()
}

pub fn pod(name: &str, node: &str) -> Value {
    objects::pod("shop", name, node)
}

/// A server with the pods a to e.
pub fn start_with_pods() -> ApiServer {
    let server = start();
    for name in ["a", "b", "c", "d", "e"] {
        server.create(Pods, pod(name, "n1")).unwrap();
    }
    server
}
