#![forbid(unsafe_code)]
pub mod assemble;
pub mod fetch_session;
pub mod limits;
pub mod replies;
