//! A transport that closes in two steps: it stops writing, and then waits for the client to close.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use tokio::time::timeout;

use super::connection::Connection;
use super::settings::Recycle;

/// A transport that closes in two steps: [`Watch::io`](super::Watch::io).
///
/// When a connection has shut down gracefully, its transport is closed for writing, and read until
/// the client closes it too. If a socket with unread data is closed, the kernel resets the
/// connection, and the client may lose the GOAWAY, which reports the requests that were not
/// processed. [`Watch::drive`](super::Watch::drive) waits for the lingering close.
#[derive(Debug)]
pub struct LingeringIo<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// `None` once it is dropped.
    inner: Option<T>,
    connection: Arc<Connection>,
}

impl<T> LingeringIo<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    pub(super) fn new(inner: T, connection: Arc<Connection>) -> Self {
        Self { inner: Some(inner), connection }
    }

    fn poll_with<R>(
        self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut T>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        match &mut self.get_mut().inner {
            Some(inner) => poll(Pin::new(inner)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_write_with(
        mut self: Pin<&mut Self>,
        poll: impl FnOnce(Pin<&mut T>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = self.as_mut().poll_with(poll);
        if let Poll::Ready(Ok(count)) = written {
            self.connection.add_written_bytes(count);
        }
        written
    }
}

impl<T> AsyncRead for LingeringIo<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.as_mut().poll_with(|inner| inner.poll_read(context, buffer));
        self.connection.add_read_bytes(buffer.filled().len().saturating_sub(before));
        read
    }
}

impl<T> AsyncWrite for LingeringIo<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(|inner| inner.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|inner| inner.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(|inner| inner.poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(|inner| inner.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

impl<T> Drop for LingeringIo<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn drop(&mut self) {
        let Recycle { linger: time, stall_timeout, .. } = self.connection.shared.settings.recycle;
        if !self.connection.lingers() || time.is_zero() {
            return;
        }
        let Some(mut inner) = self.inner.take() else { return };
        // `Watch::drive` runs it. If that has ended, the transport is dropped with the connection.
        self.connection.set_linger(Box::pin(async move {
            let read_to_end = async {
                timeout(time, inner.shutdown()).await??;
                let mut buffer = [0; 1024];
                // A slow client acknowledges the data that it has read.
                while timeout(time, inner.read(&mut buffer)).await?? > 0 {}
                io::Result::Ok(())
            };
            // Whether the client, an error or the timeout ended this: the connection is over.
            let _ = timeout(stall_timeout.max(time), read_to_end).await;
        }));
    }
}
