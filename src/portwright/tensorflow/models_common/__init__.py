"""What several model folders share: text and its tokens, input pipelines, networks of one family, heads and metrics."""
