//! The HTTP server of `syncline metrics`: one thread, and a bound on everything that a client
//! controls. A head may have 8 KiB and 64 fields and must arrive within seconds, bodies are not
//! read, a connection serves one request and has a deadline, and the number of connections is
//! limited: a new one then replaces the oldest.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn, spawn_blocking};
use tokio::time::{sleep, timeout};

/// Longest head of a request (the smallest limit that hyper accepts).
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most fields in a head.
const FIELDS_MAX: usize = 64;
/// How long a head may take.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may take in total.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// Makes the text of an answer. It may block.
type Text = dyn Fn() -> String + Send + Sync;

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    listener: tokio::net::TcpListener,
    service: Arc<Service>,
}

struct Service {
    content_type: HeaderValue,
    text: Arc<Text>,
    /// Held while a text is made: one at a time, however many clients ask.
    making: Mutex<()>,
}

impl Server {
    /// Listens at an address. `text` makes the answer to `/metrics`.
    pub fn listen(
        address: SocketAddr,
        content_type: &'static str,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        drop(inside);
        let content_type = HeaderValue::from_static(content_type);
        let service = Service { content_type, text: Arc::new(text), making: Mutex::default() };
        Ok(Self { runtime, listener, service: Arc::new(service) })
    }

    /// The address it listens at: for port 0 the system has chosen a port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` returns true, which is checked every now and then.
    pub fn serve(self, notice: Duration, stop: impl Fn() -> bool) {
        let Self { runtime, listener, service } = self;
        runtime.block_on(async {
            let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
            while !stop() {
                match timeout(notice, listener.accept()).await {
                    Err(_) => {}
                    Ok(Ok((stream, _))) => {
                        connections.retain(|connection| !connection.is_finished());
                        if connections.len() == CONNECTIONS_MAX
                            && let Some(oldest) = connections.pop_front()
                        {
                            oldest.abort();
                        }
                        connections.push_back(spawn(connection(stream, service.clone())));
                    }
                    Ok(Err(error)) => {
                        // Too many descriptors, or the client has already gone.
                        tracing::debug!("a connection could not be accepted: {error}");
                        sleep(notice).await;
                    }
                }
            }
        });
        // A daemon that does not answer must not delay the end.
        runtime.shutdown_background();
    }
}

async fn connection(stream: TcpStream, service: Arc<Service>) {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(&request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .keep_alive(false);
    match timeout(CONNECTION_TIME, http.serve_connection(TokioIo::new(stream), answer)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("an answer did not arrive: {error}"),
        Err(_) => tracing::debug!("a connection took too long"),
    }
}

impl Service {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            _ if !reads => plain(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are understood.\n"),
            "/metrics" => self.metrics().await,
            "/" => plain(StatusCode::OK, "The metrics are at /metrics.\n"),
            _ => plain(StatusCode::NOT_FOUND, "There is only /metrics.\n"),
        }
    }

    async fn metrics(&self) -> Response<Full<Bytes>> {
        let _alone = self.making.lock().await;
        let text = self.text.clone();
        match spawn_blocking(move || text()).await {
            Ok(text) => {
                let mut response = Response::new(Full::from(text));
                response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
                response
            }
            Err(error) => {
                tracing::error!("the metrics could not be gathered: {error}");
                plain(StatusCode::INTERNAL_SERVER_ERROR, "The metrics could not be gathered.\n")
            }
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
