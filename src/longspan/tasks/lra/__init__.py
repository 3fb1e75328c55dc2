"""Long Range Arena: tasks, their readers and generators."""
