mod publisher;
