//! kube's client over connections with small buffers.
//!
//! kube builds the connections itself in `Client::try_from`, and offers no setting for them; the layers are
//! the same here, without the retries and the log of requests.

use std::time::Duration;

use http::Uri;
use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, Layer as _, ServiceExt, timeout::Timeout, util::option_layer};

/// Bytes that a connection buffers, and of a response's head. hyper's own limit is 417 kB: a large list makes
/// its buffer as large, and the watch on the same connection keeps it.
const MAX_BUFFER: usize = 64 << 10;
/// With the handshake of TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Blocks: reads files, and panics over a token that is no valid header.
///
/// # Errors
/// If the configuration is unusable.
pub(super) fn client(config: &Config) -> kube::Result<Client> {
    if let Some(proxy) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy.clone()) });
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let connector = ServiceExt::<Uri>::map_future(Timeout::new(connector, CONNECT_TIMEOUT), Box::pin);
    let http: Http<_, Body> =
        Http::builder(TokioExecutor::new()).http1_max_buf_size(MAX_BUFFER).build(connector);
    let service = config.extra_headers_layer()?.layer(http.map_err(BoxError::from));
    let service = option_layer(config.auth_layer()?).layer(service);
    Ok(Client::new(config.base_uri_layer().layer(service), config.default_namespace.clone()))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use http::Request;
    use http_body_util::BodyExt as _;

    use super::*;

    fn config(url: &str) -> Config {
        Config::new(url.parse().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_large_response_comes_in_small_pieces() {
        const LEN: usize = 8 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n").unwrap();
            stream.write_all(&vec![b'x'; LEN]).unwrap();
        });
        let client = client(&config(&url)).unwrap();
        let response = client.send(Request::new(Body::empty())).await.unwrap();
        let mut body = response.into_body();
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap().len());
        }
        server.join().unwrap();
        assert_eq!(pieces.iter().sum::<usize>(), LEN);
        // hyper reads as much as its buffer has room for, which may be twice what it has asked for.
        let largest = pieces.iter().max().unwrap();
        assert!(*largest <= 128 << 10, "{largest}");
    }

    #[tokio::test]
    async fn a_proxy_is_refused() {
        let mut config = config("http://a");
        config.proxy_url = Some("http://proxy:3128".parse().unwrap());
        let error = client(&config).err().unwrap().to_string();
        assert!(error.contains("proxy"), "{error}");
    }
}
