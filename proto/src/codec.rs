//! Encoding of messages into frames: as in `tonic-prost`, with buffers of a suitable size.
//!
//! A manager has as many streams as workers, with few and small messages. The usual buffers of 8 KiB, one for
//! each direction, would be most of the memory of such a stream.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

/// Initial size in bytes of a stream's buffers; they grow with the messages.
const INITIAL_BUFFER_SIZE: usize = 512;
/// How many bytes are buffered before they are sent.
const YIELD_THRESHOLD: usize = 32 << 10;

fn settings() -> BufferSettings {
    BufferSettings::new(INITIAL_BUFFER_SIZE, YIELD_THRESHOLD)
}

/// Encodes `T` and decodes `U`.
#[derive(Debug, Clone)]
pub struct CompactCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CompactCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for CompactCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SizedEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> SizedEncoder<T> {
        SizedEncoder(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::new(settings())
    }
}

/// Reserves the size of a message before it encodes it: otherwise the buffer would grow by doubling.
#[derive(Debug, Clone)]
pub struct SizedEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for SizedEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode(buffer).expect("there is always room in what grows");
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}
