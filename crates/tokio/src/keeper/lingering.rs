//! A connection that is read to its end when it was asked to go.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::runtime::Handle;

use super::connection::Connection;

/// A transport that is closed with care: [`Watch::io`](super::Watch::io).
///
/// If the connection was asked to go, it is closed for writing when it is dropped, and read until the client has closed it
/// as well. If it were closed at once, with unread data in it, the kernel would reset it: the client would lose what it
/// has not read yet, which is the message about the requests that were not served.
#[derive(Debug)]
pub struct Lingering<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// `None` once it is dropped.
    inner: Option<T>,
    connection: Arc<Connection>,
}

impl<T> Lingering<T>
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
}

impl<T> AsyncRead for Lingering<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_with(|inner| inner.poll_read(context, buffer))
    }
}

impl<T> AsyncWrite for Lingering<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(|inner| inner.poll_write(context, bytes))
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
        self.poll_with(|inner| inner.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

impl<T> Drop for Lingering<T>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn drop(&mut self) {
        let time = self.connection.shared.settings.recycle.linger;
        if !self.connection.is_asked() || time.is_zero() {
            return;
        }
        let (Some(mut inner), Ok(runtime)) = (self.inner.take(), Handle::try_current()) else {
            return;
        };
        // It counts as closing meanwhile.
        let connection = Arc::clone(&self.connection);
        runtime.spawn(async move {
            let read_to_end = async {
                inner.shutdown().await?;
                let mut buffer = [0; 1024];
                while inner.read(&mut buffer).await? > 0 {}
                io::Result::Ok(())
            };
            // Whatever comes, the connection is over.
            let _ = tokio::time::timeout(time, read_to_end).await;
            drop(connection);
        });
    }
}
